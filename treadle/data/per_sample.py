"""Random augmentation that depends on the sample alone, not on who fetches it or when."""

import random
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset, default_collate, default_convert

from treadle.data.seeds import fold_seed
from treadle.errors import DataError


class Place(NamedTuple):
    """Which samples to fetch, and in which epoch: what a worker needs to seed them."""

    epoch: int
    indices: Any


_current: list[int] = []


@cache
def _aside() -> np.random.MT19937:
    """Return the generator that stands in for NumPy's while samples are fetched; one for each process."""
    return np.random.MT19937()


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


def draws_nothing(dataset: Any, collate: Any = default_collate) -> bool:
    """Whether fetching surely uses no randomness: tensors and plain lists, or a part of them, collated by torch."""
    if collate not in (default_collate, default_convert):
        return False
    if type(dataset) is Subset:
        return draws_nothing(dataset.dataset)
    # Exactly these: what inherits from them may do anything.
    return type(dataset) in (TensorDataset, Tensor, list, tuple)


def fetches_whole_batches(dataset: Any) -> bool:
    """Whether a data set has a way of its own to fetch a batch at once; it is then seeded batch by batch."""
    if type(dataset) is Subset:
        return fetches_whole_batches(dataset.dataset)
    return callable(getattr(dataset, "__getitems__", None))


class SeededSamples(Dataset[Any]):
    """A data set whose samples are each fetched, and whose batches are collated, with generators seeded for them.

    The seed is a hash of the run's seed, the epoch and the index. The generators' own states are saved before
    a batch and restored after it, so that fetching never disturbs what the model draws.

    Args:
        dataset: The data set.
        collate: Joins samples into a batch.
        seed: The run's seed.
    """

    def __init__(self, dataset: Any, collate: Callable[[Any], Any], seed: int) -> None:
        self.dataset = dataset
        self.seed = seed
        self._collate = collate
        self._whole = fetches_whole_batches(dataset)

    def __getitem__(self, place: Place) -> Any:
        def fetch(index: Any) -> Any:
            return self._collate(self.dataset[index])

        return self._alone(lambda: self._seeded(place.epoch, place.indices, fetch))

    def __getitems__(self, place: Place) -> Any:
        return self._alone(lambda: self._fetch(place.epoch, list(place.indices)))

    def _fetch(self, epoch: int, indices: list[Any]) -> Any:
        if self._whole:
            return self._seeded(epoch, indices, lambda wanted: self._collate(self.dataset.__getitems__(wanted)))
        samples = [self._seeded(epoch, index, self.dataset.__getitem__) for index in indices]
        return self._seeded(epoch, indices, lambda _: self._collate(samples))

    @staticmethod
    def _alone(fetch: Callable[[], Any]) -> Any:
        # NumPy's generator is put aside as a whole: copying its state out and in takes longer than all the rest.
        generators: Any = np.random
        python, own, numpy = random.getstate(), torch.get_rng_state(), generators.get_bit_generator()
        generators.set_bit_generator(_aside())
        try:
            return fetch()
        finally:
            generators.set_bit_generator(numpy)
            torch.set_rng_state(own)
            random.setstate(python)

    def _seeded(self, epoch: int, index: Any, fetch: Callable[[Any], Any]) -> Any:
        seed = fold_seed(self.seed, epoch, index)
        random.seed(seed)
        np.random.seed(seed)
        # torch.manual_seed takes a hundred times as long: it looks at the stack to seed accelerators lazily.
        torch.default_generator.manual_seed(seed)
        _current.append(seed)
        try:
            return fetch(index)
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


def as_it_is(batch: Any) -> Any:
    """Return a batch that was collated already."""
    return batch
