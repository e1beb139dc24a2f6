"""A stream of batches that counts what was drawn from it, whoever draws."""

import logging
from collections.abc import Callable, Generator, Iterator
from copy import copy
from itertools import islice
from typing import Any

import torch

from treadle.data import workers
from treadle.data.batch import Batch, mover, size_of, stay
from treadle.data.fetch import fetched_here, is_plain, positioned_sampler, rebuilt
from treadle.data.in_memory_batches import InMemoryBatches, PlacedBatches, in_memory_batches
from treadle.data.loaders import loader_length
from treadle.data.order import Order, Reseeded, SamplerOrder
from treadle.data.per_sample_rng import SeededSamples, draws_nothing
from treadle.data.prefetch import DevicePrefetcher, Waiting, prefetch_depth
from treadle.data.sampler import PositionedBatchSampler
from treadle.data.seeds import fold_seed
from treadle.data.source_copies import source_apart
from treadle.data.source_state import Repeated, ShuffleCheck, SourceState, every_nth, with_own_randomness
from treadle.errors import DataError
from treadle.runs.preemption import after_evaluated_batch

logger = logging.getLogger(__name__)


class Stream:
    """Batches of one data source for this rank: on the device, counted, and entered at any place.

    Iterating over it goes through the current epoch from its start, beside the run: nothing here moves, and no
    generator does. `rest` draws what the run has left of the epoch.

    Args:
        source: A `DataLoader`, or any iterable of ready batches.
        device: Where batches go.
        seed: What the order of a loader that the trainer made depends on.
        rank: This rank.
        size: How many ranks share the source.
        evaluation: Whether every sample counts exactly once, even if ranks get unequal numbers of batches.
        limit: The most batches to give in an epoch.
        endless: Whether the next epoch follows by itself when one is over, within a window too.
        name: What to call it in messages.
        share: Gives every rank the first one's value; by it they draw one order from somebody else's sampler.
        prefetch: How many batches are sent ahead to a GPU; "auto" is one. A source that keeps its own place, by a
            state or as an iterator, is never read ahead.
        as_torch: Whether a ready loader with a sampler draws the random numbers that `iter(loader)` draws.

    Attributes:
        device: Where batches are.
        epoch: The epoch that batches are drawn from.
        drawn: Batches drawn from it so far.
        samples: Samples that were drawn with `rest`, and not asked for yet.
        replaying: Whether the phases of a resumed epoch are being gone through again, with nothing drawn.
        in_memory: The batches of data on the device, for a step that gathers them itself; None where there are none.
        keep_last: Whether the last window is kept for a phase that takes it again.
        padded: The position, in the last window, of a batch that must not count; None otherwise.
        known_by: The data set by which a run knows its data; that of the stream in whose place this one is.
        waiting: Adds up the time that draws take; None until somebody wants to know.
    """

    def __init__(
        self,
        source: Any,
        *,
        device: torch.device,
        seed: int = 0,
        rank: int = 0,
        size: int = 1,
        evaluation: bool = False,
        limit: int | None = None,
        endless: bool = False,
        name: str = "train",
        share: Callable[[Any], Any] | None = None,
        prefetch: bool | int | str = "auto",
        as_torch: bool = False,
    ) -> None:
        self.name = name
        self.source: Any = source
        self.limit = limit
        self.endless = endless
        self.replaying = False
        self.epoch = 0
        self.drawn = 0
        self.padded: int | None = None
        self.samples = self._samples_beside = self._passed = 0
        self.keep_last = False
        self._last: list[Batch] = []
        self._last_size = 0
        self._rank, self._size, self._evaluation = rank, size, evaluation
        self.device = device
        self._iterator: Iterator[Batch] | None = None
        self._end: int | None = None
        self._peeked: list[Batch] = []
        self.waiting: Waiting | None = None
        self.sampler = positioned_sampler(
            self.source, seed=seed, rank=rank, size=size, evaluation=evaluation, share=share, as_torch=as_torch
        )
        self.known_by: Any = self.dataset
        self._seed = seed
        self._before_peek: Any = None
        self._source_state: dict[str, Any] | None = None
        self._read_out = False
        self._shuffle = ShuffleCheck(source if self.dataset is None else self.dataset, name)
        self._stateful: SourceState | None = None
        if self.sampler is None:
            self._stateful = SourceState.of(source, rank=rank, size=size, evaluation=evaluation)
        self.fetched: Any = None
        self.loader: Any = source
        self._gathered: InMemoryBatches | None = None
        self.in_memory: PlacedBatches | None = None
        self._prefetcher = self._make_prefetcher(prefetch)
        self._prepare()

    def _prepare(self) -> None:
        """Decide who fetches batches, and who brings them to the device."""
        self._in_process = self.sampler is not None and is_plain(self.source, pins=self._prefetcher is not None)
        if self.sampler is not None:
            self._prepare_fetching()
        here = self._prefetcher is not None or self.in_memory is not None
        self._move = stay if here else mover(self.device)
        self._as_is = self._size == 1 and self._move is stay

    def _make_prefetcher(self, prefetch: bool | int | str) -> DevicePrefetcher | None:
        depth = prefetch_depth(prefetch, self.device)
        if self.sampler is None and (isinstance(self.source, Iterator) or self._stateful is not None):
            # It keeps its own place, which would be ahead of what was drawn.
            return None
        return DevicePrefetcher(self.device, depth) if depth else None

    def _prepare_fetching(self) -> None:
        """Decide who fetches the samples of a map-style loader: the device, this process, or a loader with workers."""
        assert self.sampler is not None
        data, collate = self.source.dataset, self.source.collate_fn
        self._gathered = in_memory_batches(self.source, self.sampler, self.device, seed=self._seed, rank=self._rank)
        if self._gathered is not None and self._gathered.is_on(self.device):
            self.in_memory = self._gathered
        self.fetched = data if draws_nothing(data, collate) else SeededSamples(data, collate, self._seed)
        if not self._in_process and self._gathered is None:
            self.loader = rebuilt(self.source, self.fetched, self.sampler)

    @property
    def sends_ahead(self) -> bool:
        """Whether batches are sent to the device ahead of their use."""
        return self._prefetcher is not None

    def leave_small_on_host(self) -> None:
        """Leave small batches on the host from now on, for a recorded step that copies them itself."""
        if self._prefetcher is not None:
            self._prefetcher.leave_small()

    @property
    def length(self) -> int | None:
        """Batches in an epoch for this rank; None if it cannot be known."""
        if self.sampler is not None:
            count = loader_length(self.sampler)
        else:
            count = loader_length(self.source)
            if count is not None:
                count = -(-count // self._size)
        return count if count is None or self.limit is None else min(count, self.limit)

    @property
    def dataset(self) -> Any:
        """The data set behind the loader, if it has one."""
        return getattr(self.source, "dataset", None)

    @property
    def batch_sampler(self) -> Any:
        """The sampler that decides which samples make a batch, if there is one."""
        return self.sampler

    @property
    def batch_size(self) -> int | None:
        """Samples per batch on this rank, if the loader says so."""
        if self.sampler is not None:
            return self.sampler.batch_size
        return getattr(self.source, "batch_size", None)

    def __len__(self) -> int:
        length = self.length
        if length is None:
            raise TypeError(f"the {self.name} data has no known length")
        return length

    def begin(self, epoch: int, drawn: int = 0) -> None:
        """Go to the place after `drawn` batches of `epoch`."""
        if epoch != self.epoch and isinstance(self._order, SamplerOrder):
            self._order.finish()
        if self._stateful is not None:
            if self._source_state is not None:
                # Of a run that was saved between two epochs: there was nothing to read that would have loaded it.
                self._stateful.load(self._source_state, cut=self.drawn > 0 and not self._read_out)
            self._stateful.forget()
        self.epoch, self.drawn = epoch, drawn
        self._peeked = []
        self._iterator = None
        self._passed = 0
        self._end = None if self.sampler is None else self.length
        self._source_state = None
        self._read_out = False
        if self.sampler is None:
            # Before anybody asks for the place: that may start workers, which read at once.
            numbered = self.source if hasattr(self.source, "set_epoch") else self.dataset
            if hasattr(numbered, "set_epoch"):
                numbered.set_epoch(epoch)

    def begin_again(self) -> None:
        """Begin another pass over the epoch, in an order of its own where it is shuffled."""
        passed, given_up = self._passed + 1, not self._read_out
        if isinstance(self._order, SamplerOrder):
            self._order.finish()
        self.begin(self.epoch)
        if self._stateful is not None and given_up:
            self._stateful.restart()
        self._passed = passed

    def aside(self) -> "Stream":
        """Return a stream at the start of the same epoch; drawing from it moves nothing here, and no generator.

        Raises:
            DataError: The data can be read only once.
        """
        other = copy(self)
        other.endless = other.replaying = other.keep_last = False
        other.samples = other._samples_beside = other._last_size = 0
        other.waiting = other.padded = other._source_state = other._prefetcher = None
        other.in_memory = other._gathered = None
        other._last = []
        other.stand_aside()
        other.begin(self.epoch)
        other._passed = self._passed
        return other

    def stand_aside(self) -> None:
        """Take a copy of whatever moves when batches are drawn; called on a copy of the stream."""
        if self.sampler is not None:
            self.sampler = self.sampler.aside(self.epoch, fold_seed(self._seed, 4, self.epoch))
        elif self._stateful is not None:
            self._stateful = self._stateful.aside(self.name)
            self.source = self._stateful.source
        elif not self._can_be_lent():
            self.source = source_apart(self.source, self.name)
        self.loader = self.source
        self._prepare()

    def _can_be_lent(self) -> bool:
        """Whether the source can be read once, and the run does not read it: data for an evaluation of the user's."""
        return isinstance(self.source, Iterator) and self._evaluation and self._iterator is None

    @property
    def _order(self) -> Order | None:
        return None if self.sampler is None else self.sampler.order

    def _open(self) -> Iterator[Batch]:
        batches = self._open_sequence() if self.sampler is None else self._open_loader(self.sampler)
        if self._prefetcher is None or self.in_memory is not None:
            return batches
        return self._prefetcher.over(batches)

    def _open_loader(self, sampler: PositionedBatchSampler) -> Iterator[Batch]:
        """Begin a map-style loader at the place."""
        sampler.begin(self.epoch, self.drawn, self._passed)
        self._end = self.length
        if self._gathered is not None:
            return self._gathered.begin()
        if self._in_process:
            return fetched_here(self.source, self.fetched, sampler)
        self.loader.generator.manual_seed(fold_seed(self._seed, 1, self.epoch))
        return workers.begin(self.loader)

    def _open_sequence(self) -> Iterator[Batch]:
        """Begin a source that can only be read from its start, and go forward to the place in it."""
        batches: Iterator[Batch]
        seed = fold_seed(self._seed, 2, self.epoch, *([self._passed] if self._passed else []))
        if self._stateful is not None:
            batches = self._stateful.open(self._source_state, entering=self.drawn > 0, seed=seed)
        else:
            batches = with_own_randomness(lambda: workers.begin(self.source), seed)
        if self._size > 1 and not (self._stateful is not None and self._stateful.shares):
            batches = every_nth(batches, self._rank, self._size, self._evaluation)
        if self.drawn and self._source_state is None:
            logger.info("the %s data cannot be entered in the middle: %d batches are read again", self.name, self.drawn)
            next(islice(batches, self.drawn - 1, None), None)
        self._source_state = None
        return batches

    def has_next(self) -> bool:
        """Whether there is another batch; only a source of unknown length is read to find out."""
        if self._end is not None and not (self.endless or self.replaying):
            return self.drawn < self._end
        if self.endless or self.replaying:
            return True
        if self.sampler is not None and self._end is None:
            # How many there are shows when the sampler is asked for all of them.
            self._iterator = self._open()
        if self._end is not None:
            return self.drawn < self._end
        if self.limit is not None and self.drawn >= self.limit:
            return False
        if not self._peeked:
            if self._stateful is not None:
                self._before_peek = self._stateful.take()
            self._peeked = self._read(1)
        return bool(self._peeked)

    def window(self, size: int) -> list[Batch]:
        """Draw up to `size` batches; fewer, or none, at the end of the epoch, unless it is endless."""
        if self.waiting is None:
            return self._window(size)
        with self.waiting:
            return self._window(size)

    def _window(self, size: int) -> list[Batch]:
        if size == 1 and self._iterator is not None and self._is_quick():
            batches = list(islice(self._iterator, 1))
            self._last_size = len(batches)
            self.drawn += self._last_size
            return batches
        batches = self._draw(size)
        if self.endless and len(batches) < size:
            batches = self._draw_on(batches, size)
        self._last_size = len(batches)
        if self.keep_last:
            self._last = batches
        return batches

    def places(self, size: int) -> list[tuple[int, int]] | None:
        """Draw up to `size` batches of data in memory without gathering them, for a step that does it itself.

        Returns:
            For each batch its place in the order of `in_memory` and its size, fewer at the end of the epoch. None, and
            nothing drawn, if the data is not in memory, or if an endless window goes on into the next epoch.
        """
        gathered = self._gathered
        if gathered is None or self.in_memory is None or self.keep_last:
            return None
        if self._iterator is None:
            self._iterator = self._open()
        left = (self.length or 0 if self._end is None else self._end) - self.drawn
        if self.endless and left < size:
            return None
        numbers = list(islice(gathered.numbers, size if size < left else left))
        self._last_size = len(numbers)
        self.drawn += self._last_size
        if self._size > 1:
            self._note_padding([None] * self._last_size)
        return [gathered.span(number) for number in numbers]

    def _is_quick(self) -> bool:
        """Whether there is nothing to move, share, limit or go on with: drawing a batch is asking the iterator."""
        return self._as_is and not (self._peeked or self.endless or self.keep_last or self.limit is not None)

    def _draw(self, size: int) -> list[Batch]:
        if size == 1 and not self._peeked and self._iterator is not None and self.limit is None:
            batches = list(islice(self._iterator, 1))
        else:
            batches = self._gather(size)
        self.drawn += len(batches)
        if self._as_is:
            return batches
        if self._size > 1:
            batches = self._note_padding(batches)
        return [self._move(batch) for batch in batches]

    def _draw_on(self, batches: list[Batch], size: int) -> list[Batch]:
        """Fill a window from the epochs that follow."""
        padded = self.padded
        while len(batches) < size:
            self.begin(self.epoch + 1)
            more = self._draw(size - len(batches))
            if not more:
                raise DataError(f"epoch {self.epoch + 1} of the {self.name} data gives no batch; check its source")
            batches = batches + more
        self.padded = padded
        return batches

    def last_window(self) -> list[Batch]:
        """Return the window that was drawn last; after a resume it is drawn from the data again."""
        if not self._last and self._last_size:
            # Its state is that after the window: the source is read from the start of the epoch instead.
            self._source_state = None
            self.begin(self.epoch, self.drawn - self._last_size)
            return self.window(self._last_size)
        return self._last

    def _gather(self, size: int) -> list[Batch]:
        if self.limit is not None:
            size = min(size, self.limit - self.drawn)
        batches, self._peeked = self._peeked, []
        return batches if len(batches) >= size else batches + self._read(size - len(batches))

    def _note_padding(self, batches: list[Batch]) -> list[Batch]:
        """Remember which batch of the window only keeps this rank in step; it can only be the last."""
        repeated = bool(batches) and isinstance(batches[-1], Repeated)
        if repeated:
            batches = [*batches[:-1], batches[-1].batch]
        padding = repeated or (self.sampler is not None and self.sampler.is_padding(self.drawn - 1))
        self.padded = len(batches) - 1 if padding else None
        return batches

    def _read(self, count: int) -> list[Batch]:
        if self._read_out:
            return []
        iterator = self._iterator
        if iterator is None:
            iterator = self._iterator = self._open()
        batches = list(islice(iterator, count))
        self._read_out = len(batches) < count
        return batches

    def __iter__(self) -> Iterator[Batch]:
        return self._beside_the_run(self.aside())

    def _beside_the_run(self, other: "Stream") -> Iterator[Batch]:
        try:
            for batch in other.rest():
                self._samples_beside += size_of(batch)
                yield batch
                if self._evaluation:
                    # In a loop of the user's: an evaluation of our own looks for itself.
                    after_evaluated_batch()
            if not other.drawn and isinstance(other.source, Iterator):
                raise DataError(
                    f"the {self.name} data is an iterator that has been read; pass what begins anew each time"
                )
        finally:
            other.close()

    def rest(self) -> Generator[Batch, None, None]:
        """Draw what is left of the current epoch, batch by batch; each counts as drawn."""
        while self.has_next():
            batch = self.window(1)
            if not batch:
                return
            self.samples += size_of(batch[0])
            yield batch[0]

    def close(self) -> None:
        """Let go of what was opened: workers end now, and not when the garbage is collected."""
        workers.release(self.loader)
        self._iterator = None
        self._peeked = []
        if self.loader is not self.source and getattr(self.loader, "persistent_workers", False):
            self.loader._iterator = None

    def take_samples(self) -> int:
        """Return how many samples a loop of the user's drew since this was last asked.

        They are those of the run's own pass; if it drew none, the loop went its own way, beside the run.
        """
        samples = self.samples or self._samples_beside
        self.samples = self._samples_beside = 0
        return samples

    def state_dict(self) -> dict[str, Any]:
        """Return the place in the data, and what is needed to find the same order again."""
        state: dict[str, Any] = {
            "seed": self._seed,
            "epoch": self.epoch,
            "drawn": self.drawn,
            "last": self._last_size,
            **self._shuffle.state_dict(),
        }
        if isinstance(self._order, SamplerOrder):
            state["order"] = self._order.state_dict()
        if self._stateful is not None:
            state["source"] = self._before_peek if self._peeked else self._stateful.take()
            if self._source_state is not None:
                # Loaded, and nothing was drawn since.
                state["source"] = self._source_state
            # A source that has come to its end may stand at its start again, and would be read once more.
            state["read_out"] = not self._peeked and (self._read_out or self._stateful.is_read_out)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to the place in `state`."""
        self.reseed(int(state["seed"]))
        self._source_state = None
        self.begin(int(state["epoch"]), int(state["drawn"]))
        self._last, self._last_size = [], int(state["last"])
        if isinstance(self._order, SamplerOrder):
            self._order.load_state_dict(state["order"])
        self._shuffle.load_state_dict(state)
        # One that was saved by a version that took it for exact may have a state that is not to be loaded.
        self._source_state = None if self._stateful is None else state.get("source")
        self._read_out = bool(state.get("read_out"))

    def reseed(self, seed: int) -> None:
        """Take the seed of the run that is continued."""
        if seed != self._seed:
            # Workers that live on have the old one.
            self.close()
        self._seed = seed
        if isinstance(self._order, Reseeded):
            self._order.reseed(fold_seed(seed, 0))
        if isinstance(self.fetched, SeededSamples):
            self.fetched.seed = seed
        if self._gathered is not None:
            self._gathered.seed = seed
