"""Schedules whose warm-up lies over the schedule, with the names and arguments of LiBai.

The body is counted from step 0, not from the end of the warm-up: after the warm-up the rate is what it would be
without one. A linear warm-up ends at the body's value, so that the two join.
"""

import math
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Sequence

from torch.optim import Optimizer

from treadle.errors import ConfigError, did_you_mean
from treadle.schedules import base as checks
from treadle.schedules import shapes
from treadle.schedules.base import Schedule

_METHODS = ("linear", "constant")


class WarmupLR(Schedule):
    """A schedule with a warm-up over its first steps; a subclass draws the body.

    Args:
        optimizer: whose groups to write.
        max_iter: the length in optimizer updates.
        warmup_factor: what the first update's rate is of the base rate.
        warmup_iter: how many updates the warm-up takes.
        warmup_method: `linear` goes to the body in a straight line, `constant` stays at the first rate.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_iter: int,
        warmup_factor: float,
        warmup_iter: int,
        warmup_method: str = "linear",
    ) -> None:
        self.warmup_factor = checks.number(self, "warmup_factor", warmup_factor)
        self.warmup_iter = checks.steps(self, "warmup_iter", warmup_iter)
        if warmup_method not in _METHODS:
            near = did_you_mean(str(warmup_method), _METHODS) or f"; choose one of {list(_METHODS)}"
            raise ConfigError(f"{type(self).__name__}: there is no warmup_method {warmup_method!r}{near}")
        self.warmup_method = warmup_method
        length = checks.steps(self, "max_iter", max_iter, minimum=1)
        if self.warmup_iter > length:
            raise ConfigError(
                f"{type(self).__name__}: warmup_iter={self.warmup_iter} is longer than the whole run, max_iter={length}"
            )
        super().__init__(optimizer, length)

    @property
    def max_iter(self) -> int:
        """The length in optimizer updates."""
        return self._given_length

    @abstractmethod
    def body(self, step: float, base: float) -> float:
        """Return the rate at `step` as it is without a warm-up."""

    def value(self, step: float, base: float) -> float:
        """Return the rate at `step` of a group whose base rate is `base`."""
        if step >= self.warmup_iter:
            return self.body(step, base)
        first = self.warmup_factor * base
        if self.warmup_method == "constant":
            return first
        return shapes.interpolate(first, self.body(self.warmup_iter, base), step / self.warmup_iter)

    def _progress(self, step: float) -> float:
        return min(1.0, step / self.max_iter)


class WarmupCosineLR(WarmupLR):
    """Go down half a cosine wave to `alpha` of the base rate.

    >>> import torch
    >>> schedule = WarmupCosineLR(torch.optim.SGD([torch.zeros(1)], lr=1.0), 4, 0.001, 0, alpha=0.5)
    >>> [round(schedule.value(step, base=1.0), 3) for step in range(6)]
    [1.0, 0.927, 0.75, 0.573, 0.5, 0.5]

    Args:
        alpha: the rate at the end, as a share of the base rate.
        optimizer, max_iter, warmup_factor, warmup_iter, warmup_method: as for `WarmupLR`.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_iter: int,
        warmup_factor: float,
        warmup_iter: int,
        alpha: float = 0.0,
        warmup_method: str = "linear",
    ) -> None:
        self.alpha = checks.ratio(self, "alpha", alpha)
        super().__init__(optimizer, max_iter, warmup_factor, warmup_iter, warmup_method)

    def body(self, step: float, base: float) -> float:
        """Return the rate at `step` as it is without a warm-up."""
        return base * shapes.cosine(self._progress(step), self.alpha)


class WarmupCosineAnnealingLR(WarmupLR):
    """Go down half a cosine wave to the rate `eta_min`, the same for all groups.

    Args:
        eta_min: the rate at the end.
        optimizer, max_iter, warmup_factor, warmup_iter, warmup_method: as for `WarmupLR`.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_iter: int,
        warmup_factor: float,
        warmup_iter: int,
        eta_min: float = 0.0,
        warmup_method: str = "linear",
    ) -> None:
        self.eta_min = checks.number(self, "eta_min", eta_min)
        super().__init__(optimizer, max_iter, warmup_factor, warmup_iter, warmup_method)

    def body(self, step: float, base: float) -> float:
        """Return the rate at `step` as it is without a warm-up."""
        return shapes.interpolate(self.eta_min, base, shapes.cosine(self._progress(step), 0.0))


class WarmupStepLR(WarmupLR):
    """Multiply the rate by `gamma` every `step_size` updates, counted from the first.

    Args:
        step_size: every how many updates the rate drops.
        gamma: the factor of one drop.
        optimizer, max_iter, warmup_factor, warmup_iter, warmup_method: as for `WarmupLR`.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_iter: int,
        warmup_factor: float,
        warmup_iter: int,
        step_size: int,
        gamma: float = 0.1,
        warmup_method: str = "linear",
    ) -> None:
        self.step_size = checks.steps(self, "step_size", step_size, minimum=1)
        self.gamma = checks.positive(self, "gamma", gamma)
        super().__init__(optimizer, max_iter, warmup_factor, warmup_iter, warmup_method)

    def body(self, step: float, base: float) -> float:
        """Return the rate at `step` as it is without a warm-up."""
        return float(base * self.gamma ** (step // self.step_size))


class WarmupMultiStepLR(WarmupLR):
    """Multiply the rate by `gamma` at each of `milestones`, counted from the first update.

    Args:
        milestones: the steps at which the rate drops, in rising order.
        gamma: the factor of one drop.
        optimizer, max_iter, warmup_factor, warmup_iter, warmup_method: as for `WarmupLR`.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_iter: int,
        warmup_factor: float,
        warmup_iter: int,
        milestones: Sequence[int],
        gamma: float = 0.1,
        warmup_method: str = "linear",
    ) -> None:
        self.milestones = [checks.steps(self, "milestones", step) for step in milestones]
        if self.milestones != sorted(set(self.milestones)):
            raise ConfigError(f"{type(self).__name__}: milestones must rise, got {self.milestones}")
        self.gamma = checks.positive(self, "gamma", gamma)
        super().__init__(optimizer, max_iter, warmup_factor, warmup_iter, warmup_method)

    def body(self, step: float, base: float) -> float:
        """Return the rate at `step` as it is without a warm-up."""
        return float(base * self.gamma ** bisect_right(self.milestones, step))


class WarmupExponentialLR(WarmupLR):
    """Multiply the rate by `gamma` after every update.

    Args:
        gamma: the factor of one update.
        optimizer, max_iter, warmup_factor, warmup_iter, warmup_method: as for `WarmupLR`.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_iter: int,
        gamma: float,
        warmup_factor: float,
        warmup_iter: int,
        warmup_method: str = "linear",
    ) -> None:
        self.gamma = checks.positive(self, "gamma", gamma)
        super().__init__(optimizer, max_iter, warmup_factor, warmup_iter, warmup_method)

    def body(self, step: float, base: float) -> float:
        """Return the rate at `step` as it is without a warm-up."""
        return float(base * self.gamma**step)


class WarmupPolynomialLR(WarmupLR):
    """Go down to `end_learning_rate`, the same for all groups, as a power of what is left of the run.

    Args:
        end_learning_rate: the rate at the end.
        power: above 1 falls fast first, below 1 falls fast last.
        cycle: go on past the end as a polynomial of twice the length, then of three times, and so on.
        optimizer, max_iter, warmup_factor, warmup_iter, warmup_method: as for `WarmupLR`.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_iter: int,
        warmup_factor: float,
        warmup_iter: int,
        end_learning_rate: float = 0.0001,
        power: float = 1.0,
        cycle: bool = False,
        warmup_method: str = "linear",
    ) -> None:
        self.end_learning_rate = checks.number(self, "end_learning_rate", end_learning_rate)
        self.power = checks.positive(self, "power", power)
        self.cycle = cycle
        super().__init__(optimizer, max_iter, warmup_factor, warmup_iter, warmup_method)

    def body(self, step: float, base: float) -> float:
        """Return the rate at `step` as it is without a warm-up."""
        cycles = max(1, math.ceil(step / self.max_iter)) if self.cycle else 1
        progress = min(1.0, step / (self.max_iter * cycles))
        return shapes.interpolate(self.end_learning_rate, base, shapes.polynomial(progress, 0.0, self.power))
