"""The kinds of models, inputs, metrics and features, by the names that RecBole gives them."""

from enum import Enum


class ModelType(Enum):
    """What a model recommends from."""

    GENERAL = 1
    SEQUENTIAL = 2
    CONTEXT = 3
    KNOWLEDGE = 4
    TRADITIONAL = 5
    DECISIONTREE = 6


class InputType(Enum):
    """What a training batch of a model looks like.

    `POINTWISE`: user, item, label. `PAIRWISE`: user, item, and one sampled item or a matrix of several.
    `LISTWISE`: the same, and the sampled items always are a matrix. `USERWISE`: users alone, as autoencoders want.
    """

    POINTWISE = 1
    PAIRWISE = 2
    LISTWISE = 3
    USERWISE = 4


class EvaluatorType(Enum):
    """What a metric looks at: the order of items, or the value of scores."""

    RANKING = 1
    VALUE = 2


class FeatureType(Enum):
    """What a field holds: a token, a number, or a sequence of either."""

    TOKEN = "token"
    FLOAT = "float"
    TOKEN_SEQ = "token_seq"
    FLOAT_SEQ = "float_seq"

    @property
    def is_sequence(self) -> bool:
        """Whether a row holds several values."""
        return self in (FeatureType.TOKEN_SEQ, FeatureType.FLOAT_SEQ)

    @property
    def is_token(self) -> bool:
        """Whether the values are tokens."""
        return self in (FeatureType.TOKEN, FeatureType.TOKEN_SEQ)


class FeatureSource(Enum):
    """Which file a field comes from."""

    INTERACTION = "inter"
    USER = "user"
    ITEM = "item"
    USER_ID = "user_id"
    ITEM_ID = "item_id"
    KG = "kg"
    NET = "net"


class KGDataLoaderState(Enum):
    """What a loader with a knowledge graph gives: interactions and triples, interactions alone, or triples alone."""

    RSKG = 1
    RS = 2
    KG = 3
