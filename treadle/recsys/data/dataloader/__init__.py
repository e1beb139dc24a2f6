"""Loaders: batches for training and evaluation, each found by its place."""

from treadle.recsys.data.dataloader.abstract_dataloader import AbstractDataLoader, NegSampleDataLoader
from treadle.recsys.data.dataloader.custom_sampling import Negatives
from treadle.recsys.data.dataloader.eval_dataloader import FullSortEvalDataLoader, NegSampleEvalDataLoader
from treadle.recsys.data.dataloader.knowledge_dataloader import KGDataLoader, KnowledgeBasedDataLoader
from treadle.recsys.data.dataloader.packed_dataloader import PackedSequenceDataLoader
from treadle.recsys.data.dataloader.sequence_dataloader import PrefixDataLoader, SequenceTrainDataLoader
from treadle.recsys.data.dataloader.train_dataloader import EpochBatches, TrainDataLoader, UserDataLoader

__all__ = [
    "AbstractDataLoader",
    "EpochBatches",
    "FullSortEvalDataLoader",
    "KGDataLoader",
    "KnowledgeBasedDataLoader",
    "NegSampleDataLoader",
    "NegSampleEvalDataLoader",
    "Negatives",
    "PackedSequenceDataLoader",
    "PrefixDataLoader",
    "SequenceTrainDataLoader",
    "TrainDataLoader",
    "UserDataLoader",
]
