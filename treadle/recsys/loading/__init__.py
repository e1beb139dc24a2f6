"""Loaders: batches for training and evaluation, each found by its place."""

from treadle.recsys.loading.base import AbstractDataLoader
from treadle.recsys.loading.epoch_batches import EpochBatches
from treadle.recsys.loading.evaluation import FullSortEvalDataLoader, NegSampleEvalDataLoader
from treadle.recsys.loading.knowledge import KGDataLoader, KnowledgeBasedDataLoader
from treadle.recsys.loading.negative_loader import NegSampleDataLoader
from treadle.recsys.loading.negatives import Negatives
from treadle.recsys.loading.sequences import PrefixDataLoader, SequenceTrainDataLoader
from treadle.recsys.loading.training import TrainDataLoader
from treadle.recsys.loading.users import UserDataLoader

__all__ = [
    "AbstractDataLoader",
    "EpochBatches",
    "FullSortEvalDataLoader",
    "KGDataLoader",
    "KnowledgeBasedDataLoader",
    "NegSampleDataLoader",
    "NegSampleEvalDataLoader",
    "Negatives",
    "PrefixDataLoader",
    "SequenceTrainDataLoader",
    "TrainDataLoader",
    "UserDataLoader",
]
