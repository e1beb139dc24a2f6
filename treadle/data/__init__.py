"""Data that knows its place and keeps up: orders, samplers, streams, data in memory, random generators."""

from treadle.data.batch import Batch, TakesRows, size_of
from treadle.data.in_memory import InMemoryDataset
from treadle.data.in_memory_batches import InMemoryBatches, PlacedBatches
from treadle.data.loaders import DataLoaderSlice, make_loader, remove_padding
from treadle.data.location import data_folder
from treadle.data.per_sample_rng import sample_seed
from treadle.data.prefetch import DevicePrefetcher
from treadle.data.random_state import RandomState
from treadle.data.run_pass import RunPass
from treadle.data.sampler import PositionedBatchSampler
from treadle.data.seeds import fold_seed
from treadle.data.stream import Stream

__all__ = [
    "Batch",
    "DataLoaderSlice",
    "DevicePrefetcher",
    "InMemoryBatches",
    "InMemoryDataset",
    "PlacedBatches",
    "PositionedBatchSampler",
    "RandomState",
    "RunPass",
    "Stream",
    "TakesRows",
    "data_folder",
    "fold_seed",
    "make_loader",
    "remove_padding",
    "sample_seed",
    "size_of",
]
