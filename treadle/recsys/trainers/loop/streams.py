"""The batches of a loader as the core draws them: each by its place, each process its share of it."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from treadle.data import Stream, size_of
from treadle.data.batch import stay
from treadle.data.order import numbered
from treadle.data.run_pass import PassInProgress
from treadle.data.source_state import Repeated
from treadle.recsys.data.dataloader import AbstractDataLoader, EpochBatches, TrainDataLoader
from treadle.recsys.data.interaction import Interaction


class LoaderStream(Stream):
    """Draws the batches of a loader, as dicts of tensors that are on the device already.

    A batch is found by its place: a run that is resumed reads nothing again. Of several processes each gets its share
    of every batch, so that an update sees the rows that it would see on one process.

    Args:
        loader: The loader, on the device.
        device: Where it is.
        rank: This process.
        size: How many processes there are.
        name: What to call it in messages.
        passes: How often an epoch goes through the data.
        first_pass: The number of its first pass; passes with different numbers have orders of their own.
        limit: The most batches to give in an epoch.

    Attributes:
        share: What part of the last batch's rows this process got.
    """

    _placed: EpochBatches | None = None

    def __init__(
        self,
        loader: AbstractDataLoader,
        *,
        device: torch.device,
        rank: int,
        size: int,
        name: str,
        passes: int = 1,
        first_pass: int = 0,
        limit: int | None = None,
    ) -> None:
        self._loader, self._passes, self._first_pass = loader, passes, first_pass
        super().__init__(loader, device=device, rank=rank, size=size, name=name, limit=limit, prefetch=False)
        # The place is the stream's own, and batches are where they belong.
        self._stateful, self._move, self._as_is = None, stay, size == 1
        if size == passes == 1 and isinstance(loader, TrainDataLoader) and loader.fits_at_once:
            self.in_memory = self._placed = EpochBatches(loader)
        self.share = 1.0
        self.begin(0)

    def places(self, size: int) -> list[tuple[int, int]] | None:
        """Draw up to `size` batches without cutting them out, for a step that does it itself.

        Returns:
            For each batch the place in the epoch where it begins, and its size. None, and nothing drawn, if the rows
            of an epoch are not all there.
        """
        if self._placed is None or self.keep_last or self.endless:
            return None
        loader, epoch = self._loader, numbered(self.epoch, self._first_pass)
        self._placed.begin(epoch)
        first, self.drawn = self.drawn, min(self.drawn + size, self.length)
        self._last_size = self.drawn - first
        # Whoever goes on with batches begins here.
        self._iterator = None
        if self.drawn == len(loader) and loader.shuffle and self.device.type != "cpu":
            # The device is still busy with this epoch: the host draws the next order in its shadow.
            loader.epoch_order(epoch + 1)
        starts = [number * loader.step for number in range(first, self.drawn)]
        return [(start, min(loader.step, loader.sample_size - start)) for start in starts]

    @property
    def length(self) -> int:
        """Batches in an epoch."""
        count = len(self._loader) * self._passes
        return count if self.limit is None else min(count, self.limit)

    @property
    def batch_size(self) -> int:
        """The most rows of a batch that this process gets."""
        return -(-self._loader.batch_size // self._size)

    def begin(self, epoch: int, drawn: int = 0) -> None:
        """Go to the place after `drawn` batches of `epoch`."""
        super().begin(epoch, drawn)
        self._end = self.length

    def begin_pass(self, number: int) -> None:
        """Begin the epoch once more, in an order of its own."""
        self._first_pass = number
        self.begin(self.epoch)

    def stand_aside(self) -> None:
        """Leave out what gathers an epoch at once; batches are found by their place, and nothing moves."""
        self._placed = None

    def _open_sequence(self) -> Iterator[Any]:
        each = len(self._loader)
        for place in range(self.drawn, each * self._passes):
            passed, index = divmod(place, each)
            yield self._batch(numbered(self.epoch, self._first_pass + passed), index)

    def _batch(self, epoch: int, index: int) -> Any:
        loader = self._loader
        if self._size == 1:
            return loader.batch_at(epoch, index).interaction
        start = index * loader.step
        rows = min(start + loader.step, loader.sample_size) - start
        each, more = divmod(rows, self._size)
        own = each + (self._rank < more)
        self.share = own / rows
        if own:
            return loader.batch_at(epoch, index, rank=self._rank, size=self._size).interaction
        # A process without a row stays in step with a row of another one's, which does not count.
        return Repeated(loader.batch_at(epoch, index, rank=0, size=rows).interaction)


class StreamedBatches:
    """What a loop of the user's iterates over: its training data, drawn through the run's stream.

    Iterating gives the batches of this epoch as interactions; iterating again gives them in another order, with other
    negatives. Iterating inside of such a pass goes through it from its start, beside the run. Whatever else is asked
    for is asked of the data.

    Args:
        data: The user's training data.
        stream: The stream over it.
    """

    def __init__(self, data: Any, stream: Stream) -> None:
        self.data, self.stream = data, stream
        self._passes = 0
        self._in_progress = PassInProgress()

    def __iter__(self) -> Iterator[Interaction]:
        if self._in_progress:
            return map(as_interaction, self.stream)
        self.begin_pass()
        return self._in_progress.note(as_interaction(batch) for batch in self.stream.rest())

    def begin_pass(self) -> None:
        """Go to the beginning of the next pass over the data."""
        if isinstance(self.stream, LoaderStream):
            self.stream.begin_pass(self._passes)
        elif self._passes:
            self.stream.begin_again()
        self._passes += 1

    def __len__(self) -> int:
        return len(self.data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.data, name)


def as_interaction(batch: Any) -> Any:
    """Return a batch as an interaction, if it is columns by name.

    >>> len(as_interaction({"user_id": torch.tensor([1, 2])}))
    2
    """
    if not isinstance(batch, Mapping):
        return batch
    return Interaction.of_columns(dict(batch), size_of(batch))
