"""The schedules to choose from, one for each shape.

All are built by a factory that takes the optimizer, with or without placeholders:

>>> from functools import partial
>>> from treadle.schedules.placeholders import TrainerPlaceholderValues as P
>>> total_steps = P.NUM_EPOCHS * P.NUM_UPDATE_STEPS_PER_EPOCH
>>> create_scheduler_fn = partial(CosineSchedule, total_steps=total_steps, warmup_steps=100, min_ratio=0.01)
"""

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from typing import TypedDict, Unpack

from torch.optim import Optimizer

from treadle.errors import ConfigError, did_you_mean
from treadle.schedules import base as checks
from treadle.schedules import shapes
from treadle.schedules.base import Schedule

# Warm-up, body, cool-down: what Treadle's own schedules have in common


class Phases(TypedDict, total=False):
    """The keyword arguments that every shape takes; `ShapedSchedule` says what they mean."""

    warmup_steps: int
    warmup_start_ratio: float | None
    cooldown_steps: int
    final_ratio: float | None
    param_group_field: str


class ShapedSchedule(Schedule):
    """A schedule made of a warm-up, a body and a cool-down; a subclass draws the body.

    Args:
        optimizer: whose groups to write.
        total_steps: the length in optimizer updates, warm-up and cool-down included; None for no end.
        warmup_steps: how many updates the factor takes to reach 1, in a straight line.
        warmup_start_ratio: the factor of the first update; by default one part in `warmup_steps + 1`, so that no
            update is spent at zero.
        cooldown_steps: how many updates at the end of `total_steps` come after the body.
        final_ratio: where the cool-down ends, reached in a straight line; None holds what the body ended with.
        param_group_field: the field to schedule.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        total_steps: int | None,
        warmup_steps: int = 0,
        warmup_start_ratio: float | None = None,
        cooldown_steps: int = 0,
        final_ratio: float | None = None,
        param_group_field: str = "lr",
    ) -> None:
        self.warmup_steps = checks.steps(self, "warmup_steps", warmup_steps)
        if warmup_start_ratio is None:
            warmup_start_ratio = 1 / (self.warmup_steps + 1)
        self.warmup_start_ratio = checks.ratio(self, "warmup_start_ratio", warmup_start_ratio)
        self.cooldown_steps = checks.steps(self, "cooldown_steps", cooldown_steps)
        self.final_ratio = None if final_ratio is None else checks.ratio(self, "final_ratio", final_ratio)
        if total_steps is not None:
            total_steps = self._checked_length(total_steps)
        super().__init__(optimizer, total_steps, param_group_field)

    @abstractmethod
    def body(self, step: float) -> float:
        """Return the factor at `step`, which is between `warmup_steps` and `body_end`; 1 at the former."""

    @property
    def body_end(self) -> int | None:
        """The step at which the cool-down begins, or None where there is no end."""
        return None if self.total_steps is None else self.total_steps - self.cooldown_steps

    def factor(self, step: float) -> float:
        """Return the share of the base value at `step`; a fraction of a step is fine."""
        if step < self.warmup_steps:
            return shapes.interpolate(self.warmup_start_ratio, 1.0, step / self.warmup_steps)
        end = self.body_end
        if end is None or step <= end:
            return self.body(step)
        return self._cooldown(self.body(end), step - end)

    def value(self, step: float, base: float) -> float:
        """Return the value at `step` of a group whose base value is `base`."""
        return base * self.factor(step)

    def get_updated_values(self, num_updates: int) -> list[float]:
        """Return the value of each group for update number `num_updates`."""
        factor = self.factor(num_updates)
        return [base * factor for base in self.base_lr_values]

    def _cooldown(self, landed: float, elapsed: float) -> float:
        if self.final_ratio is None or self.cooldown_steps == 0:
            return landed
        return shapes.interpolate(landed, self.final_ratio, min(1.0, elapsed / self.cooldown_steps))

    def _checked_length(self, total_steps: int) -> int:
        total = checks.steps(self, "total_steps", total_steps, minimum=1)
        if self.warmup_steps + self.cooldown_steps >= total:
            raise ConfigError(
                f"{type(self).__name__}: warmup_steps={self.warmup_steps} and cooldown_steps={self.cooldown_steps} "
                f"leave nothing of total_steps={total} for the schedule itself"
            )
        return total


class AnnealingSchedule(ShapedSchedule):
    """A schedule whose body goes from 1 down to `min_ratio`, taking its whole length.

    Args:
        optimizer: whose groups to write.
        total_steps: the length in optimizer updates, warm-up and cool-down included.
        min_ratio: the factor at the end of the body, which a cool-down without `final_ratio` holds.
        phases: warm-up and cool-down, as in `ShapedSchedule`.
    """

    def __init__(
        self, optimizer: Optimizer, *, total_steps: int, min_ratio: float = 0.0, **phases: Unpack[Phases]
    ) -> None:
        self.min_ratio = checks.ratio(self, "min_ratio", min_ratio)
        checks.steps(self, "total_steps", total_steps, minimum=1)
        super().__init__(optimizer, total_steps=total_steps, **phases)

    @abstractmethod
    def anneal(self, progress: float) -> float:
        """Return the factor when the share `progress` of the body is done: 1 at 0, `min_ratio` at 1."""

    def body(self, step: float) -> float:
        """Return the factor at `step` of the body."""
        end = self._given_length - self.cooldown_steps
        return self.anneal((step - self.warmup_steps) / (end - self.warmup_steps))


class OpenSchedule(ShapedSchedule):
    """A schedule that needs no end: without `total_steps` it lasts for ever, and has no cool-down.

    Args:
        optimizer: whose groups to write.
        total_steps: where the cool-down ends, in optimizer updates.
        phases: warm-up and cool-down, as in `ShapedSchedule`; `final_ratio` is 0 unless given.
    """

    def __init__(self, optimizer: Optimizer, *, total_steps: int | None = None, **phases: Unpack[Phases]) -> None:
        phases.setdefault("final_ratio", 0.0)
        super().__init__(optimizer, total_steps=total_steps, **phases)
        if self.cooldown_steps and total_steps is None:
            raise ConfigError(f"{type(self).__name__}: cooldown_steps needs total_steps, the step it ends at")

    def _set_length(self, total_steps: int) -> None:
        if self._built_for is None:
            raise ConfigError(
                f"{type(self).__name__} was built without total_steps and has no length to change; "
                "it lasts as long as the run does"
            )
        super()._set_length(total_steps)


class ConstantSchedule(OpenSchedule):
    """Warm up, hold the base value, and cool down to `final_ratio` if a cool-down is given.

    >>> import torch
    >>> schedule = ConstantSchedule(torch.optim.SGD([torch.zeros(1)], lr=2.0), warmup_steps=3)
    >>> [2.0 * schedule.factor(step) for step in range(5)]
    [0.5, 1.0, 1.5, 2.0, 2.0]
    """

    def body(self, step: float) -> float:
        """Return 1."""
        return 1.0


class StepSchedule(OpenSchedule):
    """Hold the value, and multiply it by `gamma` at certain steps: every `step_size`, or at each of `milestones`.

    Steps are counted from the beginning of the run, so the first drop lies after the warm-up.

    >>> import torch
    >>> schedule = StepSchedule(torch.optim.SGD([torch.zeros(1)], lr=1.0), milestones=[3, 5], gamma=0.5)
    >>> [schedule.factor(step) for step in range(7)]
    [1.0, 1.0, 1.0, 0.5, 0.5, 0.25, 0.25]

    Args:
        optimizer: whose groups to write.
        step_size: drop at every multiple of this many updates.
        milestones: drop at each of these steps, in rising order.
        gamma: the factor of one drop.
        total_steps: where the cool-down ends, in optimizer updates.
        phases: warm-up and cool-down, as in `ShapedSchedule`; `final_ratio` is 0 unless given.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        step_size: int | None = None,
        milestones: Sequence[int] | None = None,
        gamma: float = 0.1,
        total_steps: int | None = None,
        **phases: Unpack[Phases],
    ) -> None:
        if (step_size is None) == (milestones is None):
            raise ConfigError("StepSchedule takes either step_size or milestones; give one of them")
        self.step_size = None if step_size is None else checks.steps(self, "step_size", step_size, minimum=1)
        self.milestones = [checks.steps(self, "milestones", step, minimum=1) for step in milestones or ()]
        self.gamma = checks.ratio(self, "gamma", gamma)
        super().__init__(optimizer, total_steps=total_steps, **phases)
        self._check_drops()

    def body(self, step: float) -> float:
        """Return `gamma` to the power of the drops so far."""
        drops = bisect_right(self.milestones, step) if self.step_size is None else step // self.step_size
        return float(self.gamma**drops)

    def _check_drops(self) -> None:
        if self.milestones != sorted(set(self.milestones)):
            raise ConfigError(f"StepSchedule: milestones must rise, got {self.milestones}")
        first = self.milestones[0] if self.milestones else self.step_size
        if first is not None and first <= self.warmup_steps:
            raise ConfigError(
                f"StepSchedule: the first drop, at step {first}, falls into the warm-up of {self.warmup_steps} "
                "steps; steps are counted from the beginning of the run"
            )


class LinearSchedule(AnnealingSchedule):
    """Go from the base value down to `min_ratio` of it in a straight line.

    >>> import torch
    >>> schedule = LinearSchedule(torch.optim.SGD([torch.zeros(1)], lr=1.0), total_steps=6, warmup_steps=2)
    >>> [round(schedule.factor(step), 3) for step in range(8)]
    [0.333, 0.667, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    """

    def anneal(self, progress: float) -> float:
        """Return the factor when the share `progress` of the body is done."""
        return shapes.linear(progress, self.min_ratio)


class CosineSchedule(AnnealingSchedule):
    """Go from the base value down to `min_ratio` of it in half a cosine wave."""

    def anneal(self, progress: float) -> float:
        """Return the factor when the share `progress` of the body is done."""
        return shapes.cosine(progress, self.min_ratio)


class PolynomialSchedule(AnnealingSchedule):
    """Go from the base value down to `min_ratio` of it as a power of what is left.

    Args:
        optimizer: whose groups to write.
        total_steps: the length in optimizer updates, warm-up and cool-down included.
        power: above 1 falls fast first, below 1 falls fast last.
        min_ratio: the factor at the end of the body.
        phases: warm-up and cool-down, as in `ShapedSchedule`.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        total_steps: int,
        power: float = 2.0,
        min_ratio: float = 0.0,
        **phases: Unpack[Phases],
    ) -> None:
        self.power = checks.positive(self, "power", power)
        super().__init__(optimizer, total_steps=total_steps, min_ratio=min_ratio, **phases)

    def anneal(self, progress: float) -> float:
        """Return the factor when the share `progress` of the body is done."""
        return shapes.polynomial(progress, self.min_ratio, self.power)


class ExponentialSchedule(AnnealingSchedule):
    """Go from the base value down to `min_ratio` of it, losing the same share in each step.

    Args:
        optimizer: whose groups to write.
        total_steps: the length in optimizer updates, warm-up and cool-down included.
        min_ratio: the factor at the end of the body; above 0.
        phases: warm-up and cool-down, as in `ShapedSchedule`.
    """

    def __init__(
        self, optimizer: Optimizer, *, total_steps: int, min_ratio: float = 0.01, **phases: Unpack[Phases]
    ) -> None:
        checks.positive_ratio(self, "min_ratio", min_ratio)
        super().__init__(optimizer, total_steps=total_steps, min_ratio=min_ratio, **phases)

    def anneal(self, progress: float) -> float:
        """Return the factor when the share `progress` of the body is done."""
        return shapes.exponential(progress, self.min_ratio)


class WSDSchedule(ShapedSchedule):
    """Warm up, stay at the base value, and decay at the end: the length need not be known before the decay.

    Without `total_steps` it stays at the base value until `stretch` sets an end; to decay from here on, call
    `schedule.stretch(schedule.num_updates + schedule.decay_steps + schedule.cooldown_steps)`.

    >>> import torch
    >>> schedule = WSDSchedule(torch.optim.SGD([torch.zeros(1)], lr=1.0), decay_steps=4)
    >>> schedule.factor(1_000_000)
    1.0
    >>> schedule.stretch(10)
    >>> [schedule.factor(step) for step in range(5, 11)]
    [1.0, 1.0, 0.75, 0.5, 0.25, 0.0]

    Args:
        optimizer: whose groups to write.
        decay_steps: how many updates the decay takes.
        total_steps: where it all ends, in optimizer updates; None if that is not known yet.
        decay_shape: one of `linear`, `cosine`, `exponential`, `square_root` and `harmonic`.
        min_ratio: the factor at the end of the decay.
        phases: warm-up and cool-down, as in `ShapedSchedule`; the cool-down follows the decay.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        decay_steps: int,
        total_steps: int | None = None,
        decay_shape: str = "linear",
        min_ratio: float = 0.0,
        **phases: Unpack[Phases],
    ) -> None:
        self.decay_steps = checks.steps(self, "decay_steps", decay_steps, minimum=1)
        if decay_shape not in shapes.SHAPES:
            near = did_you_mean(decay_shape, shapes.SHAPES) or f"; choose one of {sorted(shapes.SHAPES)}"
            raise ConfigError(f"WSDSchedule: there is no decay_shape {decay_shape!r}{near}")
        self.decay_shape = decay_shape
        check = checks.positive_ratio if decay_shape in shapes.NEEDS_POSITIVE_FLOOR else checks.ratio
        self.min_ratio = check(self, "min_ratio", min_ratio)
        super().__init__(optimizer, total_steps=total_steps, **phases)

    def body(self, step: float) -> float:
        """Return 1 until the decay begins, and then its share."""
        if self.body_end is None:
            return 1.0
        decayed = step - (self.body_end - self.decay_steps)
        return shapes.SHAPES[self.decay_shape](max(0.0, decayed / self.decay_steps), self.min_ratio)

    def _checked_length(self, total_steps: int) -> int:
        total = super()._checked_length(total_steps)
        if self.warmup_steps + self.decay_steps + self.cooldown_steps > total:
            raise ConfigError(
                f"WSDSchedule: warmup_steps={self.warmup_steps}, decay_steps={self.decay_steps} and "
                f"cooldown_steps={self.cooldown_steps} are more than total_steps={total}"
            )
        return total
