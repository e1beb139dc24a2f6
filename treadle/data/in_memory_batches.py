"""Batches of data in memory: the order of an epoch on the device, and rows gathered by it."""

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import Subset

from treadle.data.batch import Batch
from treadle.data.collate import as_index
from treadle.data.in_memory import in_memory_base
from treadle.data.order import SequentialOrder
from treadle.data.per_sample_rng import PLAIN
from treadle.data.sampler import PositionedBatchSampler
from treadle.data.seeds import fold_seed
from treadle.errors import DataError

# What a recorded step can cut its batches out of by itself


class PlacedBatches(Protocol):
    """The samples of an epoch in their order, on the device, at an address that stays the same.

    A recorded step is told a place in that order and takes its batch from there: of a batch, only this number comes
    from the host.
    """

    @property
    def transforms(self) -> bool:
        """Whether a function of the user's changes every batch, which no recording may repeat."""

    @property
    def device(self) -> torch.device:
        """Where the samples are."""

    @property
    def address(self) -> int:
        """Where the order is kept; a recording made for another address is of no use."""

    def batch_of(self, place: int, size: int) -> Batch:
        """Return the batch of `size` samples that begins at `place`."""

    def batch_at(self, cursor: Tensor, size: int) -> Batch:
        """Return the batch of `size` samples that begins at the place `cursor`, a tensor on the device."""


def in_memory_batches(
    source: Any, sampler: PositionedBatchSampler, device: torch.device, *, seed: int, rank: int
) -> "InMemoryBatches | None":
    """Return the batches of a loader over data in memory, brought to `device`; None for a loader over other data.

    Raises:
        DataError: The loader would fetch or collate in a way that leaves the data's own out.
    """
    base = in_memory_base(source.dataset)
    if base is None:
        return None
    if source.num_workers > 0:
        raise DataError(
            f"an InMemoryDataset is gathered where it lives, and num_workers={source.num_workers} cannot help there; "
            "leave them out"
        )
    if source.collate_fn not in PLAIN:
        raise DataError(
            "an InMemoryDataset joins its rows itself, and a collate_fn would not be called; use transform="
        )
    base.bring_to(device)
    return InMemoryBatches(source.dataset, sampler, seed=seed, rank=rank)


class InMemoryBatches:
    """The batches of an epoch of data in memory, gathered where the data is.

    A recorded step can gather its batch itself: it keeps the place of the batch in the order in a tensor on the
    device, and calls `batch_at` with that, which reads nothing on the host. The address of `permutation` stays the same
    as long as an epoch has as many entries.

    Args:
        dataset: The data set, or a part of it.
        sampler: Says which entries of the order make a batch.
        seed: The run's seed.
        rank: This rank.

    Attributes:
        permutation: The indices of the epoch in their order, on the device, renewed in place when one begins.
        generator: What the transform draws from; seeded for a batch by `seed_for`.
        numbers: The batches of the epoch that nobody drew yet.
    """

    def __init__(self, dataset: Any, sampler: PositionedBatchSampler, *, seed: int, rank: int = 0) -> None:
        base = in_memory_base(dataset)
        assert base is not None
        self._dataset, self._base, self._sampler = dataset, base, sampler
        self._rows = base.rows()
        self._rank = rank
        self._ends: list[int] = []
        self.seed = seed
        self.permutation = torch.empty(0, dtype=torch.int64, device=base.device)
        self.generator = torch.Generator(base.device)
        self.numbers: Iterator[int] = iter(())
        self._offsets: dict[int, Tensor] = {}

    def is_on(self, device: torch.device) -> bool:
        """Whether the data lives on `device`."""
        return self._base.device.type == device.type

    @property
    def device(self) -> torch.device:
        """Where the order is kept."""
        return self.permutation.device

    @property
    def address(self) -> int:
        """Where in memory the order is kept."""
        return self.permutation.data_ptr()

    @property
    def transforms(self) -> bool:
        """Whether a function of the user's changes every batch."""
        return self._base.transform is not None

    def begin(self) -> Iterator[Batch]:
        """Take the order of the epoch that the sampler is at, one copy to the device, and iterate from its place."""
        places = _places(self._dataset)
        if not (isinstance(self._sampler.order, SequentialOrder) and places is None and len(self.permutation)):
            order = self._order().long()
            self._fill(order if places is None else places.index_select(0, order))
        self.numbers = iter(range(self._sampler.start, len(self._sampler)))
        return map(self.batch, self.numbers)

    def _order(self) -> Tensor:
        sampler = self._sampler
        if not len(sampler.order):
            return torch.empty(0, dtype=torch.int64)
        if sampler.batch_size is not None:
            return _checked(sampler.order.tensor(0, len(sampler.order)))
        # Somebody else's batches, of any size, are laid one after the other.
        batches = [_checked(as_index(sampler.batch(number))) for number in range(len(sampler))]
        self._ends = torch.tensor([0, *map(len, batches)]).cumsum(0).tolist()
        return torch.cat(batches) if batches else torch.empty(0, dtype=torch.int64)

    def _fill(self, order: Tensor) -> None:
        device = self.permutation.device
        if len(order) != len(self.permutation):
            self.permutation = torch.empty_like(order, device=device)
        # Pinned by torch's own allocator, which keeps the memory until the copy is done: nothing waits.
        self.permutation.copy_(
            order.pin_memory() if device.type == "cuda" else order, non_blocking=device.type == "cuda"
        )

    def span(self, number: int) -> tuple[int, int]:
        """Return the place in the permutation at which a batch begins, and how many samples it has."""
        first, last = self._ends[number : number + 2] if self._ends else self._sampler.span(number)
        return first, last - first

    def batch(self, number: int) -> Batch:
        """Return the batch numbered `number` of the epoch."""
        self.seed_for(number)
        return self.batch_of(*self.span(number))

    def seed_for(self, number: int) -> None:
        """Seed the generator of the transform for the batch numbered `number`."""
        if self._base.transform is not None:
            self.generator.manual_seed(fold_seed(self.seed, 3, self._sampler.epoch, number, self._rank))

    def gather(self, indices: Tensor) -> Batch:
        """Return the batch of the samples at `indices`, a tensor on the device."""
        batch = self._rows(indices)
        return batch if self._base.transform is None else self._base.transform(batch, self.generator)

    def batch_of(self, place: int, size: int) -> Batch:
        """Return the batch of `size` samples that begins at `place` in the order."""
        return self.gather(self.permutation.narrow(0, place, size))

    def batch_at(self, cursor: Tensor, size: int) -> Batch:
        """Return the batch of `size` samples that begins at the place `cursor`, a tensor on the device."""
        offsets = self._offsets.get(size)
        if offsets is None:
            offsets = torch.arange(size, device=self.permutation.device)
            if not (offsets.is_cuda and torch.cuda.is_current_stream_capturing()):
                # What is made during a capture belongs to the graph.
                self._offsets[size] = offsets
        return self.gather(self.permutation.index_select(0, offsets + cursor))


def _checked(indices: Tensor | None) -> Tensor:
    if indices is None:
        raise DataError(
            "InMemoryDataset: its sampler gives something else than whole numbers from 0, or samples one by one; "
            "give the loader a batch_size and a sampler of indices"
        )
    return indices


def _places(dataset: Any) -> Tensor | None:
    """Return which rows of data in memory a part of it has, on the host; None if it is all of it."""
    if not isinstance(dataset, Subset):
        return None
    own, inner = as_index(dataset.indices), _places(dataset.dataset)
    if own is None:
        raise DataError("InMemoryDataset: a Subset of it has indices that are no whole numbers from 0")
    return own.long() if inner is None else inner.index_select(0, own)
