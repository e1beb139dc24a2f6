"""Data that knows its place: orders, samplers, streams and the state of random generators."""

from treadle.data.batches import Batch, size_of
from treadle.data.per_sample import sample_seed
from treadle.data.random_state import RandomState
from treadle.data.sampler import PositionedBatchSampler
from treadle.data.seeds import fold_seed
from treadle.data.slicing import DataLoaderSlice, remove_padding
from treadle.data.stream import Stream

__all__ = [
    "Batch",
    "DataLoaderSlice",
    "PositionedBatchSampler",
    "RandomState",
    "Stream",
    "fold_seed",
    "remove_padding",
    "sample_seed",
    "size_of",
]
