"""Warm-up, body, cool-down: what Treadle's own schedules have in common.

A factor multiplies the base value of every group, so that groups keep their ratio. It is a function of the step
number only, without a jump at any joint (the drops of `StepSchedule` excepted):

    1 |      ______
      |     /      \\___
      |    /           \\____________
      |   /                          \\_
      +--|---------|------------------|--> step
         warm-up         body       cool-down
"""

from abc import abstractmethod
from typing import TypedDict, Unpack

from torch.optim import Optimizer

from treadle.errors import ConfigError
from treadle.schedules import checks, shapes
from treadle.schedules.schedule import Schedule


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

    def _set_length(self, total_steps: int) -> None:
        self.total_steps = self._checked_length(total_steps)

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
        assert self.body_end is not None  # `total_steps` was required
        return self.anneal((step - self.warmup_steps) / (self.body_end - self.warmup_steps))


class OpenSchedule(ShapedSchedule):
    """A schedule that needs no end: without `total_steps` it goes on for ever, and has no cool-down.

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
                "it goes on as long as the run does"
            )
        super()._set_length(total_steps)
