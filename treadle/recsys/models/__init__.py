"""Models: what every recommender is, layers and losses to make one of, and those that come with Treadle."""

from treadle.recsys.models.abstract_recommender import (
    AbstractRecommender,
    AutoEncoderMixin,
    ContextRecommender,
    GeneralRecommender,
    KnowledgeRecommender,
    SequentialRecommender,
)
from treadle.recsys.models.bases.whole_sequences import WholeSequenceRecommender
from treadle.recsys.models.init import xavier_normal_initialization, xavier_uniform_initialization
from treadle.recsys.models.loss import BPRLoss, EmbLoss, EmbMarginLoss, RegLoss

__all__ = [
    "AbstractRecommender",
    "AutoEncoderMixin",
    "BPRLoss",
    "ContextRecommender",
    "EmbLoss",
    "EmbMarginLoss",
    "GeneralRecommender",
    "KnowledgeRecommender",
    "RegLoss",
    "SequentialRecommender",
    "WholeSequenceRecommender",
    "xavier_normal_initialization",
    "xavier_uniform_initialization",
]
