"""Random augmentation that depends on the sample alone, not on who fetches it or when."""

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset

from treadle.data.random_state import RandomState
from treadle.data.seeds import fold_seed
from treadle.errors import DataError


class Place(NamedTuple):
    """Which samples to fetch, and in which epoch: what a worker needs to seed them."""

    epoch: int
    indices: Any


_current: list[int] = []


def sample_seed() -> int:
    """Return the seed of the sample being fetched, for a generator that a data set holds itself.

    The global generators of Python, NumPy and torch are seeded already; a data set with a generator of its own
    seeds it with this in `__getitem__`, and gives the same sample whatever worker fetches it.

    Raises:
        DataError: No sample is being fetched by a trainer.
    """
    if not _current:
        raise DataError("sample_seed() has a value only while a trainer fetches a sample, inside __getitem__")
    return _current[-1]


def draws_nothing(dataset: Any) -> bool:
    """Whether a data set surely uses no randomness: tensors and plain lists, or a part of them."""
    if isinstance(dataset, Subset):
        return draws_nothing(dataset.dataset)
    return isinstance(dataset, (TensorDataset, Tensor, list, tuple))


class SeededSamples(Dataset[Any]):
    """A data set whose samples are each fetched with generators seeded for them.

    The seed is a hash of the run's seed, the epoch and the index. The generators' own states are saved before
    a batch and restored after it, so that fetching never disturbs what the model draws.

    Args:
        dataset: The data set.
        seed: The run's seed.
    """

    def __init__(self, dataset: Any, seed: int) -> None:
        self.dataset = dataset
        self._seed = seed
        self._together = getattr(dataset, "__getitems__", None)

    def __getitem__(self, place: Place) -> Any:
        return self.__getitems__(Place(place.epoch, [place.indices]))[0]

    def __getitems__(self, place: Place) -> list[Any]:
        generators = RandomState(cuda=False)
        before = generators.state_dict()
        try:
            return [self._fetch(place.epoch, index) for index in place.indices]
        finally:
            generators.load_state_dict(before)

    def _fetch(self, epoch: int, index: Any) -> Any:
        seed = fold_seed(self._seed, epoch, index)
        random.seed(seed)
        np.random.seed(seed)
        # torch.manual_seed takes a hundred times as long: it looks at the stack to seed accelerators lazily.
        torch.default_generator.manual_seed(seed)
        _current.append(seed)
        try:
            return self.dataset[index]
        finally:
            _current.pop()


class PlacedSampler:
    """Adds the epoch to what a sampler yields.

    Args:
        sampler: The sampler; it is asked for its epoch each time it is iterated over.
    """

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler

    def __iter__(self) -> Iterator[Place]:
        epoch = self._sampler.epoch
        for indices in self._sampler:
            yield Place(epoch, indices)

    def __len__(self) -> int:
        return len(self._sampler)
