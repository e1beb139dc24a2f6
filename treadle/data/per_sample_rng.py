"""Random augmentation that depends on the sample alone, not on who fetches it or when."""

import logging
from collections.abc import Callable, Iterator
from operator import length_hint
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset, default_collate, default_convert

from treadle.data.collate import HasRows, collated
from treadle.data.global_rngs import SEEDERS, Aside, moved, readers_noted, states
from treadle.data.seeds import seeds_below
from treadle.errors import DataError

logger = logging.getLogger(__name__)

PLAIN = (default_collate, default_convert)
"""What torch collates with, which draws nothing."""
NEVER_DRAW = (TensorDataset, Tensor, np.ndarray, np.memmap, list, tuple)


class Place(NamedTuple):
    """Which samples to fetch, and in which epoch: what a worker needs to seed them."""

    epoch: int
    indices: Any


class Seeds:
    """The seeds of calls that are going on: of those that a data set gets for one batch.

    Args:
        parts: What it is called with, one after the other.
        fold: Gives the seed of each.
    """

    def __init__(self, parts: list[Any], fold: Callable[[Any], int]) -> None:
        self.parts, self.fold = parts, fold
        self.left = iter(parts)

    def current(self) -> int:
        """Return the seed of the call that is going on."""
        # Counting the calls would cost each of them something; hardly any data set asks.
        return self.fold(self.parts[len(self.parts) - length_hint(self.left) - 1])


_current: list[Seeds] = []
"""Of the calls that are going on; a data set may fetch from another one."""


def sample_seed() -> int:
    """Return the seed of the sample being fetched, for a generator that a data set holds itself.

    The global generators of Python, NumPy and torch are seeded already; a data set with a generator of its own
    seeds it with this in `__getitem__`, and gives the same sample whatever worker fetches it.

    Raises:
        DataError: No sample is being fetched by a trainer.
    """
    if not _current:
        raise DataError("sample_seed() has a value only while a trainer fetches a sample, inside __getitem__")
    return _current[-1].current()


def draws_nothing(dataset: Any, collate: Any = default_collate) -> bool:
    """Whether fetching uses no randomness.

    So it is for tensors, arrays and plain lists, for parts of them and for several in a row, and for a data set
    that says so itself with `draws_nothing = True`; if torch collates them, and not a function of the user's.
    """
    if collate not in PLAIN:
        return False
    said = getattr(dataset, "draws_nothing", False)
    if said is True or said is None:
        # None is said by a source with a function of the user's, whatever its kind.
        return said is True
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


def must_be_seeded(dataset: Any) -> bool:
    """Whether a data set says, with `draws_nothing = False`, that every generator is to be seeded for each sample."""
    if type(dataset) is Subset:
        return must_be_seeded(dataset.dataset)
    if type(dataset) is ConcatDataset:
        return any(map(must_be_seeded, dataset.datasets))
    return getattr(dataset, "draws_nothing", None) is False


class UnseededDrawError(Exception):
    """A function drew from generators that were not seeded for it, since it had not been seen to draw from them."""


class SeededCalls:
    """Calls of a function, before each of which those generators are seeded that it was ever seen to draw from.

    At first all of them are seeded, and each call is watched. From then on only those are seeded that were drawn from,
    or looked at, and whether another one moves is seen once for several calls.

    Args:
        watched: Whether to watch; otherwise all generators are seeded for every call.

    Attributes:
        learning: Whether all generators are seeded, and each call is watched.
    """

    def __init__(self, *, watched: bool = True) -> None:
        self.learning = watched
        self._used: set[str] = set() if watched else set(SEEDERS)

    def __call__(
        self, calls: Callable[[Iterator[Any]], list[Any]], parts: list[Any], fold: Callable[[Any], int]
    ) -> list[Any]:
        """Return what the calls give, and leave the generators of the process as they were.

        Args:
            calls: Calls the function with each part, one after the other as it gets them.
            parts: What to call it with.
            fold: Gives the seed of each part.

        Raises:
            UnseededDrawError: The function drew from a generator that was not seeded.
        """
        seeds, aside = Seeds(parts, fold), Aside()
        _current.append(seeds)
        try:
            with aside:
                if self.learning:
                    with readers_noted(self._used):
                        results = calls(self._learning(seeds))
                else:
                    results = calls(self._seeding(seeds) if self._used else seeds.left)
        except Exception as error:
            # It may have failed for what it drew, and then not with seeds of its own.
            self._refuse_unseeded(aside, error)
            raise
        finally:
            _current.pop()
        if self.learning:
            self.learning = False
        else:
            self._refuse_unseeded(aside)
        return results

    def _refuse_unseeded(self, aside: Aside, cause: Exception | None = None) -> None:
        if aside.moved and not self.learning and not self._used.issuperset(aside.moved):
            raise UnseededDrawError(", ".join(name for name in aside.moved if name not in self._used)) from cause

    def _seeding(self, seeds: Seeds) -> Iterator[Any]:
        seeders = [SEEDERS[name] for name in self._used]
        for part in seeds.left:
            seed = seeds.fold(part)
            for seeder in seeders:
                seeder(seed)
            yield part

    def _learning(self, seeds: Seeds) -> Iterator[Any]:
        for part in seeds.left:
            seed = seeds.fold(part)
            for seeder in SEEDERS.values():
                seeder(seed)
            before = states()
            yield part
            self._used.update(moved(before, states()))


class SeededSamples(Dataset[Any]):
    """A data set whose samples are each fetched, and whose batches are collated, with generators seeded for them.

    The seed is a hash of the run's seed, the epoch and the index. The generators' own states are put back after a
    batch, so that fetching never disturbs what the model draws. Only those generators are seeded that the data set
    draws from: it is watched. The batch in which it is first seen to draw from another one is fetched again.

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
        watched = not must_be_seeded(dataset)
        self._samples, self._batches = SeededCalls(watched=watched), SeededCalls(watched=watched)

    def __getitem__(self, place: Place) -> Any:
        return self._once_or_twice(self._fetch_one, place)

    def __getitems__(self, place: Place) -> Any:
        return self._once_or_twice(self._fetch, place)

    def _once_or_twice(self, fetch: Callable[[Callable[[Any], int], Any], Any], place: Place) -> Any:
        fold = seeds_below(self.seed, place.epoch)
        try:
            return fetch(fold, place.indices)
        except UnseededDrawError as draw:
            logger.info(
                "%s draws from %s for the first time: this batch is fetched again, with seeds of its own; "
                "draws_nothing = False in the class has every batch fetched once, with all seeds",
                type(self.dataset).__name__,
                draw,
            )
        self._samples.learning = self._batches.learning = True
        return fetch(fold, place.indices)

    def _fetch_one(self, fold: Callable[[Any], int], index: Any) -> Any:
        return self._samples(lambda ones: [self._collate(self.dataset[one]) for one in ones], [index], fold)[0]

    def _fetch(self, fold: Callable[[Any], int], indices: Any) -> Any:
        indices = list(indices)
        if not self._samples_draw:
            samples = self.dataset.__getitems__(indices) if self._whole else [self.dataset[one] for one in indices]
        elif self._whole:
            samples = self._samples(lambda ones: [self.dataset.__getitems__(one) for one in ones], [indices], fold)[0]
        else:
            samples = self._samples(self._each, indices, fold)
        if self._collate is default_collate:
            return collated(samples)
        if self._collate in PLAIN:
            return self._collate(samples)
        return self._batches(lambda ones: [self._collate(samples) for _ in ones], [indices], fold)[0]

    def _each(self, indices: Iterator[Any]) -> list[Any]:
        dataset = self.dataset
        return [dataset[index] for index in indices]


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
