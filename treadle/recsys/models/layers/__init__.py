"""Layers that several models are made of, by RecBole's names."""

from treadle.recsys.models.layers.attention import (
    FeedForward,
    MultiHeadAttention,
    SequenceAttLayer,
    TransformerEncoder,
    TransformerLayer,
    VanillaAttention,
)
from treadle.recsys.models.layers.fields import FieldEmbeddings, FLEmbedding, FMEmbedding, FMFirstOrderLinear
from treadle.recsys.models.layers.interactions import AttLayer, BaseFactorizationMachine, BiGNNLayer, SparseDropout
from treadle.recsys.models.layers.interest import InterestEvolvingLayer, InterestExtractorNetwork
from treadle.recsys.models.layers.mlp import CNNLayers, Dice, MLPLayers, activation_layer
from treadle.recsys.models.layers.sequence_fields import (
    ContextSeqEmbAbstractLayer,
    ContextSeqEmbLayer,
    FeatureSeqEmbLayer,
)

__all__ = [
    "AttLayer",
    "BaseFactorizationMachine",
    "BiGNNLayer",
    "CNNLayers",
    "ContextSeqEmbAbstractLayer",
    "ContextSeqEmbLayer",
    "Dice",
    "FLEmbedding",
    "FMEmbedding",
    "FMFirstOrderLinear",
    "FeatureSeqEmbLayer",
    "FeedForward",
    "FieldEmbeddings",
    "InterestEvolvingLayer",
    "InterestExtractorNetwork",
    "MLPLayers",
    "MultiHeadAttention",
    "SequenceAttLayer",
    "SparseDropout",
    "TransformerEncoder",
    "TransformerLayer",
    "VanillaAttention",
    "activation_layer",
]
