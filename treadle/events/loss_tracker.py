"""The mean of many losses, which stay on the device until somebody asks."""

import math
from typing import Any, NamedTuple

from torch import Tensor

from treadle.events.pending import read_values
from treadle.progress import Progress


class NonFinite(NamedTuple):
    """A loss that is nan or infinite: its step, its value, and the loss before it if that is known."""

    step: int
    value: float
    before: float | None


class LossSummary(NamedTuple):
    """What some losses add up to: their weighted sum, their weight, and the first bad one among them."""

    total: float
    weight: float
    nonfinite: NonFinite | None


NOTHING = LossSummary(0.0, 0.0, None)


class LossTracker:
    """The weighted mean of many losses, which stay on the device until somebody asks.

    Two sums are kept: since the last `reset` (an epoch), and since the last `take` (a log). Both are added up
    loss by loss in the same order however often they are read, so that a resumed run gives the same bits.

    Args:
        progress: Where the run is: losses are remembered with the number of the step they belong to.

    Attributes:
        skip_nonfinite: Whether losses that are nan or infinite stay out of the sums.
    """

    def __init__(self, progress: Progress | None = None) -> None:
        self.progress = Progress() if progress is None else progress
        self.skip_nonfinite = False
        self.reset()

    def reset(self) -> None:
        """Forget every loss."""
        self._steps: list[int] = []
        self._losses: list[Any] = []
        self._weights: list[Any] = []
        self._total = self._count = self._latest = 0.0
        self._taken = NOTHING

    def update(self, loss: Any, batch_size: Any = 1) -> None:
        """Add a mean loss over `batch_size` samples; either may be a tensor on the device."""
        self._steps.append(self.progress.step)
        self._losses.append(loss.detach() if isinstance(loss, Tensor) else loss)
        self._weights.append(batch_size)

    def mark(self) -> int:
        """Return how many losses are pending, to come back to with `rewind`."""
        return len(self._losses)

    def rewind(self, mark: int) -> None:
        """Forget the losses that were put since `mark`."""
        del self._steps[mark:], self._losses[mark:], self._weights[mark:]

    def spoil(self, norm: Tensor) -> None:
        """Make the newest loss nan, on the device, if the norm of its gradient is not finite."""
        if self._losses and isinstance(self._losses[-1], Tensor):
            self._losses[-1] = self._losses[-1] + norm.detach() * 0

    def read(self) -> NonFinite | None:
        """Bring pending losses to the host with one copy; return the first bad one since the last `take`."""
        steps, losses, weights = self._steps, read_values(self._losses), read_values(self._weights)
        self._steps, self._losses, self._weights = [], [], []
        total, weight_since, bad = self._taken
        for step, loss, weight in zip(steps, losses, weights, strict=True):
            if not math.isfinite(loss):
                # The loss of the update under way, after n others, is the loss of step n + 1.
                bad = bad or NonFinite(step + 1, loss, self._latest if self._count else None)
                if self.skip_nonfinite:
                    continue
            self._total += loss * weight
            self._count += weight
            total += loss * weight
            weight_since += weight
            self._latest = loss
        self._taken = LossSummary(total, weight_since, bad)
        return bad

    def take(self) -> LossSummary:
        """Return what the losses since the last time add up to."""
        self.read()
        taken, self._taken = self._taken, NOTHING
        return taken

    @property
    def total_loss(self) -> float:
        """The sum of all losses, each times its batch size."""
        self.read()
        return self._total

    @property
    def running_count(self) -> float:
        """The number of samples over all losses."""
        self.read()
        return self._count

    @property
    def loss_value(self) -> float:
        """The newest loss."""
        self.read()
        return self._latest

    @property
    def average(self) -> float:
        """The mean loss over all samples; nan before the first."""
        return self.total_loss / self.running_count if self.running_count else math.nan

    def state_dict(self) -> dict[str, Any]:
        """Return the sums as plain data."""
        self.read()
        bad = self._taken.nonfinite
        sums = {"total": self._total, "count": self._count, "latest": self._latest, "taken": self._taken[:2]}
        return {**sums, "bad": None if bad is None else list(bad)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the sums from `state`."""
        self.reset()
        self._total, self._count = float(state["total"]), float(state["count"])
        self._latest = float(state["latest"])
        total, weight = state["taken"]
        bad = state.get("bad")
        self._taken = LossSummary(float(total), float(weight), None if bad is None else NonFinite(*bad))
