"""A stream of batches that counts what was drawn from it, whoever draws."""

import logging
import random
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, Sampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from treadle.data.batches import Batch, mover, size_of, stay
from treadle.data.order import Order, SamplerOrder, SequentialOrder, ShuffledOrder
from treadle.data.per_sample import PlacedSampler, SeededSamples, as_it_is, draws_nothing
from treadle.data.random_state import RandomState
from treadle.data.sampler import PositionedBatchSampler
from treadle.data.seeds import fold_seed
from treadle.errors import DataError

logger = logging.getLogger(__name__)


class Shuffle(RandomSampler):
    """Marks a loader that the trainer made: its order comes from the run's seed and the epoch."""


class Stream:
    """Batches of one data source for this rank: on the device, counted, and entered at any place.

    Iterating over it, as a loop of one's own does, draws the rest of the current epoch.

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

    Attributes:
        epoch: The epoch that batches are drawn from.
        drawn: Batches drawn from it so far.
        samples: Samples that were drawn by iterating, and not asked for yet.
        replaying: Whether the phases of a resumed epoch are being gone through again, with nothing drawn.
        keep_last: Whether the last window is kept for a phase that takes it again.
        padded: The position, in the last window, of a batch that must not count; None otherwise.
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
    ) -> None:
        self.name = name
        self.source: Any = source
        self.limit = limit
        self.endless = endless
        self.replaying = False
        self.epoch = 0
        self.drawn = 0
        self.padded: int | None = None
        self.samples = 0
        self.keep_last = False
        self._last: list[Batch] = []
        self._last_size = 0
        self._rank, self._size, self._evaluation = rank, size, evaluation
        self._move = mover(device)
        self._as_is = size == 1 and self._move is stay
        self._iterator: Iterator[Batch] | None = None
        self._end: int | None = None
        self._peeked: list[Batch] = []
        self.sampler = _positioned_sampler(
            self.source, seed=seed, rank=rank, size=size, evaluation=evaluation, share=share
        )
        self._seed = seed
        self._before_peek: Any = None
        self._source_state: dict[str, Any] | None = None
        # With workers, it is their copies of the data set that move: the one here knows no place.
        in_workers = getattr(source, "num_workers", 0) > 0
        dataset = None if in_workers else getattr(source, "dataset", None)
        self._stateful: Any = source if hasattr(source, "state_dict") else dataset
        self._in_process = self.sampler is not None and is_plain(source)
        self.fetched: Any = None
        self.loader: Any = source
        if self.sampler is not None:
            data, collate = self.source.dataset, self.source.collate_fn
            self.fetched = data if draws_nothing(data, collate) else SeededSamples(data, collate, seed)
            if not self._in_process:
                self.loader = _rebuilt(self.source, self.fetched, self.sampler)

    @property
    def length(self) -> int | None:
        """Batches in an epoch for this rank; None if it cannot be known."""
        if self.sampler is not None:
            count = _length_of(self.sampler)
        else:
            count = _length_of(self.source)
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
        self.epoch, self.drawn = epoch, drawn
        self._peeked = []
        self._iterator = None
        self._end = None if self.sampler is None else self.length
        self._source_state = None

    @property
    def _order(self) -> Order | None:
        return None if self.sampler is None else self.sampler.order

    def _open(self) -> Iterator[Batch]:
        if self.sampler is not None:
            self.sampler.begin(self.epoch, self.drawn)
            self._end = self.length
            if self._in_process:
                return fetched_here(self.source, self.fetched, self.sampler)
            self.loader.generator.manual_seed(fold_seed(self._seed, 1, self.epoch))
            return iter(self.loader)
        if hasattr(self.source, "set_epoch"):
            self.source.set_epoch(self.epoch)
        return self._open_sequence()

    def _open_sequence(self) -> Iterator[Batch]:
        """Begin a source that can only be read from its start, and go forward to the place in it."""
        if hasattr(self._stateful, "state_dict"):
            if self._source_state is not None:
                self._stateful.load_state_dict(self._source_state)
            batches: Iterator[Batch] = _opened_aside(self.source)
        else:
            batches = _with_own_randomness(self.source, fold_seed(self._seed, 2, self.epoch))
        if self._size > 1:
            batches = _every_nth(batches, self._rank, self._size, self._evaluation)
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
            if hasattr(self._stateful, "state_dict"):
                self._before_peek = self._stateful.state_dict()
            self._peeked = self._read(1)
        return bool(self._peeked)

    def window(self, size: int) -> list[Batch]:
        """Draw up to `size` batches; fewer, or none, at the end of the epoch, unless it is endless."""
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
        repeated = bool(batches) and isinstance(batches[-1], _Repeated)
        if repeated:
            batches = [*batches[:-1], batches[-1].batch]
        padding = repeated or (self.sampler is not None and self.sampler.is_padding(self.drawn - 1))
        self.padded = len(batches) - 1 if padding else None
        return batches

    def _read(self, count: int) -> list[Batch]:
        iterator = self._iterator
        if iterator is None:
            iterator = self._iterator = self._open()
        return list(islice(iterator, count))

    def __iter__(self) -> Iterator[Batch]:
        while self.has_next():
            batch = self.window(1)
            if not batch:
                return
            self.samples += size_of(batch[0])
            yield batch[0]

    def close(self) -> None:
        """Let go of what was opened: workers end now, and not when the garbage is collected."""
        self._iterator = None
        self._peeked = []
        if self.loader is not self.source and getattr(self.loader, "persistent_workers", False):
            self.loader._iterator = None

    def take_samples(self) -> int:
        """Return how many samples were drawn by iterating since this was last asked."""
        samples, self.samples = self.samples, 0
        return samples

    def state_dict(self) -> dict[str, Any]:
        """Return the place in the data, and what is needed to find the same order again."""
        state: dict[str, Any] = {
            "seed": self._seed,
            "epoch": self.epoch,
            "drawn": self.drawn,
            "last": self._last_size,
        }
        if isinstance(self._order, SamplerOrder):
            state["order"] = self._order.state_dict()
        if self.sampler is None and hasattr(self._stateful, "state_dict"):
            state["source"] = self._before_peek if self._peeked else self._stateful.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to the place in `state`."""
        self.reseed(int(state["seed"]))
        self.begin(int(state["epoch"]), int(state["drawn"]))
        self._last, self._last_size = [], int(state["last"])
        if isinstance(self._order, SamplerOrder):
            self._order.load_state_dict(state["order"])
        self._source_state = state.get("source")

    def reseed(self, seed: int) -> None:
        """Take the seed of the run that is continued."""
        self._seed = seed
        if isinstance(self._order, ShuffledOrder):
            self._order.reseed(fold_seed(seed, 0))
        if isinstance(self.fetched, SeededSamples):
            self.fetched.seed = seed


def _length_of(source: Any) -> int | None:
    try:
        return len(source)
    except TypeError:
        return None


def _opened_aside(source: Any) -> Iterator[Batch]:
    """Begin a source without moving the generators: torch's loader draws a seed each time, also after a resume."""
    generators = RandomState(cuda=False)
    before = generators.state_dict()
    batches: Iterator[Batch] = iter(source)
    generators.load_state_dict(before)
    return batches


def _with_own_randomness(source: Any, seed: int) -> Iterator[Batch]:
    """Read a source with generators of its own, so that reading it again gives the same, whoever else draws."""
    generators = RandomState(cuda=False)
    outside = generators.state_dict()
    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)
    batches = iter(source)
    while True:
        batch = next(batches, _END)
        inside = generators.state_dict()
        generators.load_state_dict(outside)
        if batch is _END:
            return
        yield batch
        outside = generators.state_dict()
        generators.load_state_dict(inside)


_END = object()


class _Repeated:
    """A batch of another rank, drawn to stay in step and not to be counted."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch


def _every_nth(batches: Iterator[Batch], rank: int, size: int, evaluation: bool) -> Iterator[Batch]:
    """Give each rank its batch of every group of `size`; in training a rank without one repeats the first."""
    while group := list(islice(batches, size)):
        if rank < len(group):
            yield group[rank]
        elif not evaluation:
            yield _Repeated(group[0])


def _positioned_sampler(
    source: Any, *, seed: int, rank: int, size: int, evaluation: bool, share: Callable[[Any], Any] | None
) -> PositionedBatchSampler | None:
    """Return the sampler for a map-style loader; None for anything else, which is drawn in sequence."""
    if not isinstance(source, DataLoader) or isinstance(source.dataset, IterableDataset):
        return None
    sampler, batch_sampler = source.sampler, source.batch_sampler
    batch_size, drop_last = None, False
    if type(batch_sampler) is torch.utils.data.BatchSampler:
        sampler, batch_size, drop_last = batch_sampler.sampler, batch_sampler.batch_size, batch_sampler.drop_last
    if isinstance(sampler, DistributedSampler):
        # Somebody shared the data out already; each rank keeps its part.
        rank, size, share = 0, 1, None
    if batch_sampler is not None and batch_size is None:
        order: Order = SamplerOrder(batch_sampler, source.generator, share=share)
    else:
        order = _order_of(sampler, source, seed, share)
    return PositionedBatchSampler(
        order, batch_size=batch_size, drop_last=drop_last, rank=rank, size=size, evaluation=evaluation
    )


def _order_of(
    sampler: Sampler[Any] | Iterable[Any],
    source: DataLoader[Any],
    seed: int,
    share: Callable[[Any], Any] | None,
) -> Order:
    if isinstance(sampler, Shuffle):
        return ShuffledOrder(len(source.dataset), fold_seed(seed, 0))  # type: ignore[arg-type]
    if type(sampler) is SequentialSampler:
        return SequentialOrder(len(source.dataset))  # type: ignore[arg-type]
    return SamplerOrder(sampler, source.generator, share=share)


def is_plain(source: Any) -> bool:
    """Whether a loader only fetches and collates, in this process, as torch's own does."""
    return type(source) is DataLoader and source.num_workers == 0 and not source.pin_memory


def fetched_here(source: Any, dataset: Any, sampler: PositionedBatchSampler) -> Iterator[Batch]:
    """Fetch and collate the batches of `sampler` in this process.

    The same as iterating over the loader, without its bookkeeping: a profiler label and a few calls per batch,
    which cost more than the rest of the trainer.
    """
    seeded = isinstance(dataset, SeededSamples)
    places = PlacedSampler(sampler) if seeded else sampler
    collate = as_it_is if seeded else source.collate_fn
    if source.batch_sampler is None:
        for index in places:
            yield collate(dataset[index])
        return
    together = getattr(dataset, "__getitems__", None)
    for indices in places:
        yield collate(together(indices) if together else [dataset[index] for index in indices])


def _rebuilt(source: Any, dataset: Any, sampler: PositionedBatchSampler) -> DataLoader[Any]:
    """Return a loader like `source` that draws through `sampler` and touches no global generator."""
    places: Any = PlacedSampler(sampler) if isinstance(dataset, SeededSamples) else sampler
    chosen: dict[str, Any] = {"batch_sampler": places}
    if source.batch_sampler is None:
        chosen = {"batch_size": None, "sampler": places}
    if source.num_workers > 0:
        chosen |= {
            "prefetch_factor": source.prefetch_factor,
            "persistent_workers": source.persistent_workers,
            "multiprocessing_context": source.multiprocessing_context,
        }
    return DataLoader(
        dataset,
        num_workers=source.num_workers,
        collate_fn=as_it_is if isinstance(dataset, SeededSamples) else source.collate_fn,
        pin_memory=source.pin_memory,
        timeout=source.timeout,
        worker_init_fn=source.worker_init_fn,
        generator=torch.Generator(),
        **chosen,
    )


def make_loader(dataset: Any, *, shuffle: bool, collate_fn: Any = None, **kwargs: Any) -> DataLoader[Any]:
    """Return a `DataLoader` over `dataset` whose shuffling follows the run's seed.

    Raises:
        DataError: The data set is empty.
    """
    if isinstance(dataset, IterableDataset):
        return DataLoader(dataset, collate_fn=collate_fn, **kwargs)
    if _length_of(dataset) == 0:
        raise DataError(f"the data set {type(dataset).__name__} is empty; give it at least one sample")
    if shuffle and not {"sampler", "batch_sampler"} & set(kwargs):
        kwargs["sampler"] = Shuffle(dataset)
    return DataLoader(dataset, collate_fn=collate_fn, **kwargs)


def without_idle_workers(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return loader arguments without those that torch refuses when there are no workers.

    >>> without_idle_workers({"num_workers": 0, "persistent_workers": True, "batch_size": 4})
    {'num_workers': 0, 'batch_size': 4}
    """
    if kwargs.get("num_workers", 0) > 0:
        return kwargs
    return {name: value for name, value in kwargs.items() if name not in ("persistent_workers", "prefetch_factor")}
