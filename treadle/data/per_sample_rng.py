"""Random augmentation that depends on the sample alone, not on who fetches it or when."""

import random
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    ConcatDataset,
    Dataset,
    Subset,
    TensorDataset,
    default_collate,
    default_convert,
    get_worker_info,
)

from treadle.data.collate import HasRows
from treadle.data.seeds import seeds_below
from treadle.errors import DataError

PLAIN = (default_collate, default_convert)
"""What torch collates with, which draws nothing."""
NEVER_DRAW = (TensorDataset, Tensor, np.ndarray, np.memmap, list, tuple)


class Place(NamedTuple):
    """Which samples to fetch, and in which epoch: what a worker needs to seed them."""

    epoch: int
    indices: Any


_current: list[int | None] = []


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
    seed = _current[-1] if _current else None
    if seed is None:
        raise DataError("sample_seed() has a value only while a trainer fetches a sample, inside __getitem__")
    return seed


def draws_nothing(dataset: Any, collate: Any = default_collate) -> bool:
    """Whether fetching uses no randomness.

    So it is for tensors, arrays and plain lists, for parts of them and for several in a row, and for a data set
    that says so itself with `draws_nothing = True`; if torch collates them, and not a function of the user's.
    """
    if collate not in PLAIN:
        return False
    if getattr(dataset, "draws_nothing", False) is True:
        return True
    if type(dataset) is Subset:
        return draws_nothing(dataset.dataset)
    if type(dataset) is ConcatDataset:
        return all(map(draws_nothing, dataset.datasets))
    # Exactly these: what inherits from them may do anything.
    return isinstance(dataset, HasRows) or type(dataset) in NEVER_DRAW


def fetches_whole_batches(dataset: Any) -> bool:
    """Whether a data set has a way of its own to fetch a batch at once; it is then seeded batch by batch."""
    if type(dataset) is Subset:
        return fetches_whole_batches(dataset.dataset)
    return callable(getattr(dataset, "__getitems__", None))


class SeededSamples(Dataset[Any]):
    """A data set whose samples are each fetched, and whose batches are collated, with generators seeded for them.

    The seed is a hash of the run's seed, the epoch and the index. The generators' own states are saved before
    a batch and restored after it, so that fetching never disturbs what the model draws. Of a sample's seven
    microseconds, Python's own generator takes four.

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
        self._samples_draw = not draws_nothing(dataset)

    def __getitem__(self, place: Place) -> Any:
        with _Aside():
            _seed(seeds_below(self.seed, place.epoch)(place.indices))
            return self._collate(self.dataset[place.indices])

    def __getitems__(self, place: Place) -> Any:
        with _Aside():
            return self._fetch(seeds_below(self.seed, place.epoch), list(place.indices))

    def _fetch(self, fold: Callable[[Any], int], indices: list[Any]) -> Any:
        if self._whole:
            _seed(fold(indices))
            return self._collate(self.dataset.__getitems__(indices))
        samples = self._samples(fold, indices) if self._samples_draw else [self.dataset[index] for index in indices]
        if self._collate not in PLAIN:
            _seed(fold(indices))
        return self._collate(samples)

    def _samples(self, fold: Callable[[Any], int], indices: list[Any]) -> list[Any]:
        dataset, samples = self.dataset, []
        for index in indices:
            _seed(fold(index))
            samples.append(dataset[index])
        return samples


def _seed(seed: int) -> None:
    """Seed every generator for the sample or batch that comes next."""
    random.seed(seed)
    np.random.seed(seed)
    # torch.manual_seed takes a hundred times as long: it looks at the stack to seed accelerators lazily.
    torch.default_generator.manual_seed(seed)
    _current[-1] = seed


class _Aside:
    """Keeps the generators of the process as they are, while others are drawn from."""

    def __enter__(self) -> None:
        _current.append(None)
        # In a worker nobody else draws, and the copies would take as long as two samples.
        self._kept = get_worker_info() is None
        if self._kept:
            # NumPy's generator is put aside as a whole: copying its state out and in takes longer than all the rest.
            generators: Any = np.random
            self._python, self._torch = random.getstate(), torch.get_rng_state()
            self._numpy = generators.get_bit_generator()
            generators.set_bit_generator(_aside())

    def __exit__(self, *exception: object) -> None:
        _current.pop()
        if self._kept:
            generators: Any = np.random
            generators.set_bit_generator(self._numpy)
            torch.set_rng_state(self._torch)
            random.setstate(self._python)


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
