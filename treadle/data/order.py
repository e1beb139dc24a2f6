"""The order in which an epoch visits its samples, as something one can enter anywhere."""

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.utils.data import Dataset

from treadle.data.collate import as_index
from treadle.data.random_state import OwnGenerators, RandomState
from treadle.data.seeds import fold_seed
from treadle.data.source_copies import with_own_generators


class Order(Protocol):
    """All indices of an epoch, each by its place."""

    def begin(self, epoch: int, passed: int = 0) -> None:
        """Get ready for the epoch numbered `epoch`, or for another pass over it, when `passed` others were made."""

    def aside(self, epoch: int, seed: int) -> "Order":
        """Return an order of `epoch` that moves nothing here; what is not drawn yet is drawn by `seed`."""

    def __len__(self) -> int:
        """How many indices an epoch has."""

    def slice(self, start: int, stop: int) -> list[Any]:
        """Return the indices at places `start` to `stop`."""

    def tensor(self, start: int, stop: int) -> Tensor | None:
        """Return these indices as a tensor; None if they are no whole numbers from 0."""


@runtime_checkable
class Reseeded(Protocol):
    """An order that follows from a seed, which a run that is resumed sets."""

    def reseed(self, seed: int) -> None:
        """Take another seed."""


class HasOrder(Dataset[Any]):
    """A data set that has an order of its own for a run, and need not have one drawn."""

    @property
    def skipped(self) -> int:
        """How many corrupt records were left out so far."""
        return 0

    def order(self, seed: int) -> Order:
        """Return the order of shuffled epochs of a run with this seed."""
        raise NotImplementedError

    def in_sequence(self) -> Order:
        """Return the order of epochs that are not shuffled."""
        raise NotImplementedError


LATER_PASSES = 32
"""Bits to the left at which the number of a pass stands in the number of an epoch."""


def numbered(epoch: int, passed: int) -> int:
    """Return the number of a pass over the data: of the first of an epoch, that of the epoch.

    >>> numbered(3, 0), numbered(3, 1) == 3 + 2**32
    (3, True)
    """
    return epoch + (passed << LATER_PASSES)


class SequentialOrder:
    """The indices as they come."""

    def __init__(self, length: int) -> None:
        self._length = length

    def begin(self, epoch: int, passed: int = 0) -> None:
        """Do nothing: every epoch is alike."""

    def aside(self, epoch: int, seed: int) -> "SequentialOrder":
        """Return the order itself: it does not move."""
        return self

    def __len__(self) -> int:
        return self._length

    def slice(self, start: int, stop: int) -> list[Any]:
        """Return the indices at places `start` to `stop`."""
        return list(range(start, min(stop, self._length)))

    def tensor(self, start: int, stop: int) -> Tensor:
        """Return these indices as a tensor."""
        return torch.arange(start, max(start, min(stop, self._length)))


class ShuffledOrder:
    """A permutation that depends on the seed and the epoch alone, so that any place is entered directly."""

    def __init__(self, length: int, seed: int) -> None:
        self._length = length
        self._seed = seed
        self._epoch = -1
        self._permutation = torch.empty(0, dtype=torch.int32)

    def reseed(self, seed: int) -> None:
        """Take another seed."""
        self._seed, self._epoch = seed, -1

    def begin(self, epoch: int, passed: int = 0) -> None:
        """Draw the permutation of `epoch`; another one for each pass over it."""
        epoch = numbered(epoch, passed)
        if epoch == self._epoch:
            return
        generator = torch.Generator().manual_seed(fold_seed(self._seed, epoch))
        kind = torch.int32 if self._length < 2**31 else torch.int64
        self._permutation = torch.randperm(self._length, generator=generator, dtype=kind)
        self._epoch = epoch

    def aside(self, epoch: int, seed: int) -> "ShuffledOrder":
        """Return a copy, which draws by itself."""
        return copy(self)

    def __len__(self) -> int:
        return self._length

    def slice(self, start: int, stop: int) -> list[Any]:
        """Return the indices at places `start` to `stop`."""
        return self._permutation[start:stop].tolist()

    def tensor(self, start: int, stop: int) -> Tensor:
        """Return these indices as a tensor, a part of the permutation itself."""
        return self._permutation[start:stop]


class ListedOrder:
    """Indices that were drawn already."""

    def __init__(self, indices: Sequence[Any]) -> None:
        self._indices = indices
        self._whole: Tensor | None = None

    def begin(self, epoch: int, passed: int = 0) -> None:
        """Do nothing: they are for one epoch."""

    def aside(self, epoch: int, seed: int) -> "ListedOrder":
        """Return the order itself: it does not move."""
        return self

    def __len__(self) -> int:
        return len(self._indices)

    def slice(self, start: int, stop: int) -> list[Any]:
        """Return the indices at places `start` to `stop`."""
        return list(self._indices[start:stop])

    def tensor(self, start: int, stop: int) -> Tensor | None:
        """Return these indices as a tensor; None if there is anything else among them than whole numbers from 0."""
        if self._whole is None:
            # Once an epoch: for each batch by itself it would take longer than fetching the batch.
            self._whole = as_index(self._indices)
        return None if self._whole is None else self._whole[start:stop]


class SamplerOrder:
    """What somebody else's sampler, or batch sampler, gives in an epoch.

    It draws from whatever generators it likes, so their states at the start of the epoch are remembered: from
    them the same order can be drawn again, and on every rank the order of the first. Generators of its own are
    kept at their present state besides.

    Args:
        sampler: The sampler or batch sampler.
        generator: The generator of its loader, if that has one.
        share: Returns on every rank what the first one has.
        as_torch: Whether to draw what `iter(loader)` draws, so that the order is that of a hand-written loop.
    """

    def __init__(
        self,
        sampler: Iterable[Any],
        generator: torch.Generator | None = None,
        *,
        share: Callable[[Any], Any] | None = None,
        as_torch: bool = False,
    ) -> None:
        self._sampler = sampler
        self._generator, self._as_torch = generator, as_torch
        self._share = share or (lambda value: value)
        nested = [sampler, getattr(sampler, "sampler", None)]
        found = [generator, *(getattr(one, "generator", None) for one in nested)]
        unique = {id(generator): generator for generator in found if isinstance(generator, torch.Generator)}
        self._own = list(unique.values())
        self._random = RandomState(*self._own)
        self._drawn: ListedOrder | None = None
        self._epoch: int | None = None
        self._start: dict[str, Any] | None = None

    def begin(self, epoch: int, passed: int = 0) -> None:
        """Draw the order of `epoch`, from the remembered states if they were set."""
        self._epoch = epoch
        if hasattr(self._sampler, "set_epoch"):
            self._sampler.set_epoch(epoch)
        if self._start is None:
            present = self._random.state_dict()
            self._start = self._share(present)
            if self._start is present:
                self._draw()
                return
        # Drawn again, for a run that goes on or as another rank does: what this process draws from stays there.
        shared = RandomState()
        now = shared.state_dict()
        self._random.load_state_dict(self._start)
        self._draw()
        shared.load_state_dict(now)

    def _draw(self) -> None:
        if self._as_torch:
            # A seed for workers, which `iter(loader)` draws before its sampler draws anything, with workers or without.
            torch.empty((), dtype=torch.int64).random_(generator=self._generator)
        self._drawn = ListedOrder(list(self._sampler))

    def aside(self, epoch: int, seed: int) -> "ListedOrder":
        """Return the order that was drawn; if none was, what the sampler gives with generators seeded with `seed`."""
        if self._drawn is not None and self._epoch == epoch and self._start is not None:
            return self._drawn
        own = [generator.get_state() for generator in self._own]
        sampler = with_own_generators(self._sampler)
        with OwnGenerators(seed):
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
            indices = list(sampler)
        for generator, state in zip(self._own, own, strict=True):
            generator.set_state(state)
        return ListedOrder(indices)

    def finish(self) -> None:
        """Forget the remembered states: the next epoch draws anew."""
        self._start = None

    def state_dict(self) -> dict[str, Any]:
        """Return the states at the start of the epoch, and the present ones of the sampler's own generators."""
        state = {"start": self._start, "own": [generator.get_state() for generator in self._own]}
        return {**state, "as_torch": True} if self._as_torch else state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the states back; the order is drawn when the epoch begins."""
        self._start, self._as_torch = state["start"], state.get("as_torch", False)
        for generator, own in zip(self._own, state["own"], strict=True):
            generator.set_state(own)

    def __len__(self) -> int:
        return len(self._drawn) if self._drawn is not None else len(self._sampler)  # type: ignore[arg-type]

    def slice(self, start: int, stop: int) -> list[Any]:
        """Return the indices at places `start` to `stop`."""
        assert self._drawn is not None, "begin() comes first"
        return self._drawn.slice(start, stop)

    def tensor(self, start: int, stop: int) -> Tensor | None:
        """Return these indices as a tensor; None if the sampler gives anything else than whole numbers from 0."""
        assert self._drawn is not None, "begin() comes first"
        return self._drawn.tensor(start, stop)
