"""Samplers that know their place: they begin anywhere in an epoch at no cost, and give each rank its share."""

from collections.abc import Iterator
from copy import copy
from typing import Any

from torch import Tensor
from torch.utils.data import Sampler

from treadle.data.order import Order, numbered

CHUNK, MOST = 1024, 65536
"""The most batches, and the most samples, whose indices are drawn from the order at once."""


class PositionedBatchSampler(Sampler[Any]):
    """Batches of one rank, from any place of an epoch.

    With several ranks, the global batch of size x `batch_size` samples is cut into slices, one per rank: the
    ranks together see what one process with the global batch would see. A last, shorter global batch is spread
    as evenly as it goes. A rank left without a sample repeats one in training (see `is_padding`), and has no
    batch in evaluation, so that every sample is evaluated exactly once.

    Args:
        order: The indices of an epoch.
        batch_size: Samples per rank and batch; None if each entry of `order` is a batch already.
        drop_last: Whether a last, shorter global batch is left out.
        rank: This rank.
        size: How many ranks share the data.
        evaluation: Whether the batches are for evaluation.

    Attributes:
        epoch: The epoch that iterating goes over, with the number of the pass.
        start: The batch that it begins with.
    """

    def __init__(
        self,
        order: Order,
        *,
        batch_size: int | None,
        drop_last: bool = False,
        rank: int = 0,
        size: int = 1,
        evaluation: bool = False,
    ) -> None:
        self.order = order
        self.batch_size = batch_size
        self.drop_last = drop_last
        self._rank = rank
        self._size = size
        self._evaluation = evaluation
        self.start = 0
        self.epoch = 0

    @property
    def global_size(self) -> int:
        """Entries of the order in one full global batch."""
        return (self.batch_size or 1) * self._size

    def begin(self, epoch: int, batch: int = 0, passed: int = 0) -> None:
        """Get ready to iterate over `epoch` from the batch numbered `batch`, after `passed` passes over all of it."""
        self.order.begin(epoch, passed)
        self.epoch, self.start = numbered(epoch, passed), batch

    def aside(self, epoch: int, seed: int) -> "PositionedBatchSampler":
        """Return a sampler for `epoch` that moves nothing here; an order that is not drawn yet is drawn by `seed`."""
        other = copy(self)
        other.order = self.order.aside(epoch, seed)
        return other

    def __len__(self) -> int:
        full, rest = divmod(len(self.order), self.global_size)
        if self.drop_last or not rest:
            return full
        if self._evaluation and self._share(rest)[0] == self._share(rest)[1]:
            return full
        return full + 1

    def __iter__(self) -> Iterator[Any]:
        if self._size > 1:
            yield from map(self.batch, range(self.start, len(self)))
            return
        # Alone, batches are neighbouring slices: a run of them is cut from the order at once.
        size, count = self.batch_size or 1, len(self)
        chunk = max(1, min(CHUNK, MOST // size))
        for first in range(self.start, count, chunk):
            entries = self.order.slice(first * size, min(first + chunk, count) * size)
            if self.batch_size is None:
                yield from entries
            else:
                yield from (entries[place : place + size] for place in range(0, len(entries), size))

    def tensors(self) -> Iterator[Tensor] | None:
        """Iterate over the indices of batches as tensors; None if these are no whole numbers from 0, or batches."""
        if self.batch_size is None or self.order.tensor(0, 1) is None:
            return None
        return self._tensors(self.batch_size)

    def _tensors(self, size: int) -> Iterator[Tensor]:
        if self._size > 1:
            yield from (self._slice(*self.span(number)) for number in range(self.start, len(self)))
            return
        count = len(self)
        chunk = max(1, min(CHUNK, MOST // size))
        for first in range(self.start, count, chunk):
            indices = self._slice(first * size, min(first + chunk, count) * size)
            yield from indices.split(size)  # type: ignore[no-untyped-call]

    def _slice(self, start: int, stop: int) -> Tensor:
        indices = self.order.tensor(start, stop)
        assert indices is not None, "tensors() looked"
        return indices

    def is_padding(self, number: int) -> bool:
        """Whether the batch numbered `number` only keeps this rank in step and must not count."""
        rest = len(self.order) - number * self.global_size
        if self._evaluation or rest >= self._size:
            return False
        first, last = self._share(rest)
        return first == last

    def batch(self, number: int) -> Any:
        """Return the indices, or the entry, of the batch numbered `number`."""
        entries = self.order.slice(*self.span(number))
        return entries if self.batch_size is not None else entries[0]

    def span(self, number: int) -> tuple[int, int]:
        """Return where in the order the batch numbered `number` begins and ends."""
        base = number * self.global_size
        if self._size == 1:
            return base, min(len(self.order), base + self.global_size)
        first, last = self._share(min(len(self.order) - base, self.global_size))
        if first == last:
            first, last = 0, 1
        return base + first, base + last

    def _share(self, count: int) -> tuple[int, int]:
        each, more = divmod(count, self._size)
        first = self._rank * each + min(self._rank, more)
        return first, first + each + (self._rank < more)
