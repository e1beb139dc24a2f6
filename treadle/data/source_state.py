"""Sources that keep their own place: its state is taken, entered, and undone when the next epoch begins."""

import logging
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, islice
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from treadle.data import workers
from treadle.data.batch import Batch
from treadle.data.random_state import OwnGenerators, RandomState
from treadle.data.source_copies import source_apart

# Sources that can only be read from their start, one batch after the other


def opened_aside(source: Any) -> Iterator[Batch]:
    """Begin a source without moving the generators: torch's loader draws a seed each time, also after a resume."""
    generators = RandomState(cuda=False)
    before = generators.state_dict()
    batches = workers.begin(source)
    generators.load_state_dict(before)
    return batches


def is_read_out(batches: Any) -> bool:
    """Whether torch's loader knows that the batch it gave was the last: a short one, which no other follows."""
    return bool(getattr(getattr(batches, "_dataset_fetcher", None), "ended", False))


def with_own_randomness(begin: Callable[[], Iterator[Batch]], seed: int) -> Iterator[Batch]:
    """Read what `begin` opens with generators of its own: read again it gives the same, whoever else draws."""
    own = OwnGenerators(seed)
    with own:
        batches = begin()
    while True:
        with own:
            batch = next(batches, _END)
        if batch is _END:
            return
        yield batch


_END = object()


class Repeated(NamedTuple):
    """A batch of another rank, drawn to stay in step and not to be counted."""

    batch: Batch


def every_nth(batches: Iterator[Batch], rank: int, size: int, evaluation: bool) -> Iterator[Batch]:
    """Give each rank its batch of every group of `size`; in training a rank without one repeats the first."""
    while group := list(islice(batches, size)):
        if rank < len(group):
            yield group[rank]
        elif not evaluation:
            yield Repeated(group[0])


# What can be told of a stream of Hugging Face's `datasets` without having the package


logger = logging.getLogger(__name__)


def loses_samples(dataset: Any) -> bool:
    """Whether a stream that is resumed from its own state lacks samples.

    A buffer that shuffles is not in the state: it is filled anew, and what was in it is lost. So may be a part of a
    table that a function over batches was given.
    """
    for part in _parts(dataset):
        of_tables = getattr(getattr(part, "formatting", None), "is_table", False)
        if hasattr(part, "buffer_size") or (of_tables and getattr(part, "batched", False)):
            return True
    return False


def shuffle_mark(dataset: Any) -> str | None:
    """Return a mark of the generators that a stream is shuffled with; None if there are none.

    Made without a seed, a stream has other ones in every process, and another order.
    """
    generators = [getattr(part, "generator", None) for part in _parts(dataset)]
    states = [repr(one.bit_generator.state) for one in generators if isinstance(one, np.random.Generator)]
    return f"{crc32(repr(states).encode()):08x}" if states else None


class ShuffleCheck:
    """Says, once, that a stream goes on in another order than the one it was saved in.

    Args:
        dataset: The stream.
        name: What to call it.
    """

    def __init__(self, dataset: Any, name: str) -> None:
        self._dataset, self._name = dataset, name
        self._told = False

    def state_dict(self) -> dict[str, str]:
        """Return the mark of the order; nothing where the stream is not shuffled."""
        mark = shuffle_mark(self._dataset)
        return {} if mark is None else {"shuffle": mark}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Compare the order with that of `state`."""
        if self._told or state.get("shuffle") in (None, shuffle_mark(self._dataset)):
            return
        self._told = True
        logger.warning(
            "the %s data is shuffled with another seed than when the run was saved, so it continues in another order; "
            "give shuffle() a seed",
            self._name,
        )


def _parts(dataset: Any) -> Iterator[Any]:
    """Yield the steps that make the samples, the last one first."""
    left = [getattr(dataset, "_ex_iterable", None)]
    while left:
        part = left.pop()
        if part is not None:
            yield part
            left += [getattr(part, "ex_iterable", None), *(getattr(part, "ex_iterables", None) or ())]


class HasReader:
    """A data set that is read by an object of its own, which keeps its place: in workers, and for all ranks."""

    @property
    def skipped(self) -> int:
        """How many corrupt records were left out so far."""
        return 0

    def reader(self, loader: Any, *, rank: int, size: int, evaluation: bool) -> Any:
        """Return what opens the data set for a stream, with the methods of a `SourceState`.

        Args:
            loader: The loader of the data set, which says how batches are made.
            rank: The rank of the stream.
            size: How many ranks share the batches.
            evaluation: Whether every sample counts exactly once.
        """
        raise NotImplementedError


class SourceState:
    """The place that a source keeps by itself, with `state_dict` and `load_state_dict`.

    Many sources apply a state that was loaded once at every later `iter()`: the epochs after a resumed one would lack
    what that one had done before it was left. Others count their epochs in it, and must not be set back. So the first
    batch of the next epoch is looked at: if the source stands behind it where it stood behind the first batch after the
    state was loaded, the state sticks, and the source is brought to its beginning.

    Args:
        source: A `DataLoader`, or an iterable of ready batches.
        holder: What has the state: the source, or its data set.

    Attributes:
        source: The source.
    """

    shares = False
    """Whether each rank's share of the batches is cut here already."""

    def __init__(self, source: Any, holder: Any) -> None:
        self.source, self._holder = source, holder
        self._in_workers = getattr(source, "num_workers", 0) > 0
        # Workers that are started for every pass copy the data set that is here, where no state was ever loaded.
        of_torchdata = self._in_workers and hasattr(source, "next_iter_state")
        self._begins_anew = of_torchdata and not source.persistent_workers
        # What may stick: of a loader only its data set, and only where it is in this process.
        kept = source.dataset if isinstance(source, DataLoader) else holder
        self._keeper: Any = kept if hasattr(kept, "state_dict") and not self._in_workers else None
        self._fresh: Any = _UNKNOWN
        self._begun: Any = _UNKNOWN
        self._loaded = self._anew = self._is_copy = False
        self._cut_at: Any = _UNKNOWN
        self._after_entering: Any = _UNKNOWN
        self._opened: Any = None

    @classmethod
    def of(cls, source: Any, *, rank: int = 0, size: int = 1, evaluation: bool = False) -> "SourceState | None":
        """Return the place that `source` keeps; None if it keeps none, or one that does not lead back exactly."""
        dataset = getattr(source, "dataset", None)
        if isinstance(dataset, HasReader):
            reader: SourceState = dataset.reader(source, rank=rank, size=size, evaluation=evaluation)
            return reader
        if loses_samples(source if dataset is None else dataset):
            return None
        if hasattr(source, "state_dict"):
            return cls(source, source)
        # With workers, it is their copies of the data set that move: the one here knows no place.
        in_workers = getattr(source, "num_workers", 0) > 0
        return cls(source, dataset) if hasattr(dataset, "state_dict") and not in_workers else None

    def aside(self, name: str) -> "SourceState":
        """Return the same for a copy of the source, which begins the epoch anew; this one stays where it is."""
        source = source_apart(self.source, name)
        other = type(self)(source, source if self._holder is self.source else source.dataset)
        other._is_copy = True
        other._begun = self._fresh if self._begun is _UNKNOWN else self._begun
        if self._loaded and other._keeper is not None:
            # What was loaded may be applied at every pass.
            other._keeper.load_state_dict(self._fresh)
        return other

    def restart(self) -> None:
        """Have the next pass be the whole epoch, though the last one was left in the middle."""
        self._anew = True

    def open(self, state: Any, *, entering: bool, seed: int) -> Iterator[Batch]:
        """Open the source for an epoch.

        Args:
            state: The state of a run that is continued; None where it is where it belongs.
            entering: Whether that is in the middle of the epoch.
            seed: What a copy of the source seeds the generators with while it is read.
        """
        if self._is_copy:
            return with_own_randomness(self._begin_anew, seed)
        if state is not None and entering:
            return self._enter(state)
        if state is not None:
            self.load(state)
        if self._anew:
            return self._begin_anew()
        return self._begin()

    def _begin_anew(self) -> Iterator[Batch]:
        """Begin the epoch that the source is in."""
        self._anew = False
        if self._keeper is None or self._begun is _UNKNOWN:
            return self._open()
        _, once = self._first()
        batches, again = self._first()
        if once is not _UNKNOWN and is_same(once, again):
            return batches
        # It resumes where it was left.
        self._keeper.load_state_dict(self._begun)
        return self._open()

    def take(self) -> Any:
        """Return the state."""
        return self._holder.state_dict()

    def load(self, state: Any, *, cut: bool = False) -> None:
        """Load the state of a run that was saved between two epochs.

        Args:
            state: The state.
            cut: Whether the epoch before was left in the middle, as a limit has it.
        """
        self._remember_beginning()
        self._holder.load_state_dict(state)
        self._loaded, self._after_entering = True, _UNKNOWN
        self._cut_at = state if cut else _UNKNOWN

    def _enter(self, state: Any) -> Iterator[Batch]:
        """Go on in the middle of an epoch."""
        self.load(state)
        self._begun = _UNKNOWN
        return self._noting_first(self._open())

    def _begin(self) -> Iterator[Batch]:
        """Begin an epoch."""
        self._remember_beginning()
        if self._keeper is not None:
            self._begun = self._keeper.state_dict()
        if not self._loaded:
            return self._open()
        self._loaded = False
        if self._begins_anew:
            self.source.next_iter_state = self.source._iterator = None
            self.source._initial_iter_for_state_dict = False
            return self._open()
        generators = RandomState()
        before = generators.state_dict()
        cut_at, self._cut_at = self._cut_at, _UNKNOWN
        if cut_at is not _UNKNOWN:
            self._after_entering = self._first()[1]
            generators.load_state_dict(before)
        batches, place = self._first()
        if place is _UNKNOWN:
            # Torchdata's loader may have been saved knowing that its data is at the end, and ends once more.
            batches, place = self._first()
        if place is _UNKNOWN or _sticks(place, self._after_entering):
            self._go_to_beginning()
        elif cut_at is _UNKNOWN:
            return batches
        else:
            # Left in the middle, it begins anew by itself, or goes on: one that goes on is elsewhere each time.
            generators.load_state_dict(before)
            batches, again = self._first()
            if is_same(again, place):
                return batches
            self._holder.load_state_dict(cut_at)
        generators.load_state_dict(before)
        return self._open()

    def _first(self) -> tuple[Iterator[Batch], Any]:
        """Open the source; return its batches, and where each worker stands behind its first, if there is one."""
        batches = self._open()
        first: list[Batch] = []
        places: dict[Any, Any] = {}
        while len(first) < self._workers and (batch := next(batches, _UNKNOWN)) is not _UNKNOWN:
            first.append(batch)
            self._note_place(places)
        return chain(first, batches), places or _UNKNOWN

    @property
    def is_read_out(self) -> bool:
        """Whether the loader knows that the batch it gave was the last."""
        if not self._in_workers:
            return is_read_out(self._opened)
        # Torchdata's loader saves what its workers know, and does not ask for it when it is resumed.
        found = self._place()
        fetchers = [one.get("fetcher_state") for one in found.values() if isinstance(one, Mapping)]
        return bool(fetchers) and all(isinstance(one, Mapping) and one.get("fetcher_ended") for one in fetchers)

    def forget(self) -> None:
        """Let go of what was opened."""
        self._opened = None

    def _open(self) -> Iterator[Batch]:
        batches = self._opened = opened_aside(self.source)
        return batches

    def _noting_first(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        places: dict[Any, Any] = {}
        self._after_entering = places
        for number, batch in enumerate(batches):
            if number < self._workers:
                self._note_place(places)
            yield batch

    @property
    def _workers(self) -> int:
        """How many of them keep a place of their own."""
        return self.source.num_workers if self._in_workers else 1

    def _place(self) -> Any:
        """Return where the data set stands, whoever has it."""
        if self._keeper is not None:
            return self._keeper.state_dict()
        state = self._holder.state_dict()
        # Of torchdata's loader: the rest counts what the loader gave, which is no part of the data set's place.
        return state.get("_snapshot", state).get("_worker_snapshots", state)

    def _note_place(self, places: dict[Any, Any]) -> None:
        """Put the place behind the batch that was given last into `places`, by the worker that it came from."""
        place, worker = self._place(), None
        if self._in_workers and "_snapshot" in (state := self._holder.state_dict()):
            worker = f"worker_{state['_snapshot']['_last_yielded_worker_id']}"
            place = place[worker]
        places.setdefault(worker, place)

    def _remember_beginning(self) -> None:
        if self._fresh is _UNKNOWN and self._keeper is not None:
            self._fresh = self._keeper.state_dict()

    def _go_to_beginning(self) -> None:
        if self._keeper is None:
            # New workers get the data set as it is here, where no state was ever loaded.
            self.source._iterator = None
        else:
            self._keeper.load_state_dict(self._fresh)


_UNKNOWN = object()


def _sticks(places: dict[Any, Any], after_entering: Any) -> bool:
    """Whether any worker stands where it stood behind the first batch after its state was loaded."""
    if after_entering is _UNKNOWN:
        return False
    return any(is_same(place, after_entering[worker]) for worker, place in places.items() if worker in after_entering)


def is_same(one: Any, other: Any) -> bool:
    """Whether two states are the same, tensors and arrays in them included.

    >>> is_same({"place": torch.tensor([1, 2])}, {"place": torch.tensor([1, 2])})
    True
    """
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(is_same, one, other))
    return type(one) is type(other) and bool(one == other)
