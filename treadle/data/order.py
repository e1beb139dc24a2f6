"""The order in which an epoch visits its samples, as something one can enter anywhere."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch

from treadle.data.random_state import RandomState
from treadle.data.seeds import fold_seed


class Order(Protocol):
    """All indices of an epoch, each by its place."""

    def begin(self, epoch: int) -> None:
        """Get ready for the epoch numbered `epoch`."""

    def __len__(self) -> int:
        """How many indices an epoch has."""

    def slice(self, start: int, stop: int) -> list[Any]:
        """Return the indices at places `start` to `stop`."""


class SequentialOrder:
    """The indices as they come."""

    def __init__(self, length: int) -> None:
        self._length = length

    def begin(self, epoch: int) -> None:
        """Do nothing: every epoch is alike."""

    def __len__(self) -> int:
        return self._length

    def slice(self, start: int, stop: int) -> list[Any]:
        """Return the indices at places `start` to `stop`."""
        return list(range(start, min(stop, self._length)))


class ShuffledOrder:
    """A permutation that depends on the seed and the epoch alone, so that any place is entered directly."""

    def __init__(self, length: int, seed: int) -> None:
        self._length = length
        self._seed = seed
        self._epoch = -1
        self._permutation = torch.empty(0, dtype=torch.int32)

    def begin(self, epoch: int) -> None:
        """Draw the permutation of `epoch`."""
        if epoch == self._epoch:
            return
        generator = torch.Generator().manual_seed(fold_seed(self._seed, epoch))
        kind = torch.int32 if self._length < 2**31 else torch.int64
        self._permutation = torch.randperm(self._length, generator=generator, dtype=kind)
        self._epoch = epoch

    def __len__(self) -> int:
        return self._length

    def slice(self, start: int, stop: int) -> list[Any]:
        """Return the indices at places `start` to `stop`."""
        return self._permutation[start:stop].tolist()


class SamplerOrder:
    """What somebody else's sampler, or batch sampler, gives in an epoch.

    It draws from whatever generators it likes, so their states at the start of the epoch are remembered: from
    them the same order can be drawn again.
    """

    def __init__(self, sampler: Iterable[Any], generator: torch.Generator | None = None) -> None:
        self._sampler = sampler
        self._random = RandomState(generator)
        self._indices: Sequence[Any] | None = None
        self.start_state: dict[str, Any] | None = None

    def begin(self, epoch: int) -> None:
        """Draw the order of `epoch`, from the remembered states if they were set."""
        if hasattr(self._sampler, "set_epoch"):
            self._sampler.set_epoch(epoch)
        if self.start_state is None:
            self.start_state = self._random.state_dict()
            self._indices = list(self._sampler)
            return
        # Drawn again, for a run that goes on: the generators have moved on since, and stay where they are.
        now = self._random.state_dict()
        self._random.load_state_dict(self.start_state)
        self._indices = list(self._sampler)
        self._random.load_state_dict(now)

    def finish(self) -> None:
        """Forget the remembered states: the next epoch draws anew."""
        self.start_state = None

    def __len__(self) -> int:
        return len(self._indices) if self._indices is not None else len(self._sampler)  # type: ignore[arg-type]

    def slice(self, start: int, stop: int) -> list[Any]:
        """Return the indices at places `start` to `stop`."""
        assert self._indices is not None, "begin() comes first"
        return list(self._indices[start:stop])
