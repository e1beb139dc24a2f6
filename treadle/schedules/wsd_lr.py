"""`WSDLrScheduler`: warm-up, stable, decay before each checkpoint, with the arguments of pytorch-accelerated."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Self, TypedDict

from torch.optim import Optimizer

from treadle.errors import ConfigError
from treadle.schedules import base as checks
from treadle.schedules import shapes
from treadle.schedules.base import Schedule
from treadle.schedules.placeholders import PlaceholderExpression, TrainerPlaceholderValues


class Period(TypedDict):
    """The updates up to one checkpoint: stable until `pre_decay_step`, decaying from there to `period_end`."""

    period_start: int
    period_end: int
    decay_steps: int
    pre_decay_step: int


def estimate_checkpoint_steps(total_steps: int, num_checkpoints: int = 3) -> list[int]:
    """Return the steps of the checkpoints: the last at the end, each other at half of the one after it.

    >>> estimate_checkpoint_steps(200_000, 4)
    [25000, 50000, 100000, 200000]
    """
    return [total_steps // 2**remaining for remaining in reversed(range(num_checkpoints))]


class WSDLrScheduler(Schedule):
    """Warm up, stay at the base rate, and decay before each checkpoint; the next period starts at the base rate.

    To continue from a checkpoint, build it with the length of what is to come and
    `is_continuation_from_checkpoint=True`, and load the old state: a new stable phase begins, without warm-up.
    A continuation that was itself interrupted resumes where it stood. To continue a continuation by the same
    number of steps once more, call `begin_continuation()` after loading.

    Args:
        optimizer: whose groups to write.
        num_epochs: the length in epochs; give it with `num_update_steps_per_epoch`, or give `total_steps`.
        num_update_steps_per_epoch: the optimizer updates of one epoch.
        total_steps: the length in optimizer updates.
        num_warmup_steps: how many updates the rate takes to reach its base value; None is a hundredth of the length,
            which is what pytorch-accelerated does (its documentation says a tenth), or what there is before the first
            decay if that is less.
        decay_phase_ratio: the share of each period that decays.
        lr_min: where a decay ends, as a share of the base rate.
        warmup_starting_lr: the rate of the first update of a warm-up, for all groups.
        use_inverse_sqrt_decay: decay as one minus a square root; otherwise so that the inverse of the rate grows
            in a straight line.
        num_checkpoints: how many checkpoints; each is twice as far as the one before.
        is_continuation_from_checkpoint: whether this goes on from the state of another run.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        num_epochs: int | None = None,
        num_update_steps_per_epoch: int | None = None,
        total_steps: int | None = None,
        num_warmup_steps: float | None = 0,
        decay_phase_ratio: float = 0.1,
        lr_min: float = 1e-6,
        warmup_starting_lr: float = 1e-6,
        use_inverse_sqrt_decay: bool = True,
        num_checkpoints: int = 1,
        is_continuation_from_checkpoint: bool = False,
    ) -> None:
        self.decay_phase_ratio = checks.ratio(self, "decay_phase_ratio", decay_phase_ratio)
        self.lr_min = (checks.ratio if use_inverse_sqrt_decay else checks.positive_ratio)(self, "lr_min", lr_min)
        self.warmup_starting_lr = checks.number(self, "warmup_starting_lr", warmup_starting_lr)
        self.use_inverse_sqrt_decay = use_inverse_sqrt_decay
        self.num_checkpoints = checks.steps(self, "num_checkpoints", num_checkpoints, minimum=1)
        self.is_continuation_from_checkpoint = is_continuation_from_checkpoint
        self._asked_warmup = num_warmup_steps
        length = self._length(num_epochs, num_update_steps_per_epoch, total_steps)
        super().__init__(optimizer, length)
        self._set_length(length)
        self._check_warmup_start()

    def value(self, step: float, base: float) -> float:
        """Return the rate at `step` of a group whose base rate is `base`."""
        if step < self.num_warmup_steps:
            return shapes.interpolate(self.warmup_starting_lr, base, step / self.num_warmup_steps)
        period = self._period_at(step)
        if step <= period["pre_decay_step"] or period["decay_steps"] == 0:
            return base
        progress = min(1.0, (step - period["pre_decay_step"]) / period["decay_steps"])
        decay = shapes.square_root if self.use_inverse_sqrt_decay else shapes.harmonic
        return base * decay(progress, self.lr_min)

    def get_checkpoint_steps(self) -> list[int]:
        """Return how many updates are done at each checkpoint."""
        return [period["period_end"] for period in self.checkpoint_decay_info]

    def get_decay_info(self) -> list[Period]:
        """Return the periods, one for each checkpoint."""
        return self.checkpoint_decay_info

    def get_phase_info(self, num_updates: int) -> Period:
        """Return the period that `num_updates` updates lie in; its last update still counts."""
        for period in self.checkpoint_decay_info:
            if num_updates <= period["period_end"]:
                return period
        return self.checkpoint_decay_info[-1]

    def get_current_step(self) -> int:
        """Return how many updates are done."""
        return self._num_updates

    def get_current_phase_info(self) -> Period:
        """Return the period of the updates done so far."""
        return self.get_phase_info(self._num_updates)

    def begin_continuation(self) -> None:
        """Start a new stable phase here: count from 0 again, without warm-up."""
        self.is_continuation_from_checkpoint = True
        self._num_updates = 0
        self._set_length(self._given_length)
        self.step_update(0)

    def state_dict(self) -> dict[str, Any]:
        """Return the step number, the length, and whether it counts from a checkpoint."""
        return {**super().state_dict(), "is_continuation": self.is_continuation_from_checkpoint}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to the step of `state_dict`; a continuation takes up only the state of a continuation like itself."""
        resumes = state_dict.get("is_continuation") and state_dict.get("built_for") == self._built_for
        if self.is_continuation_from_checkpoint and not resumes:
            self.begin_continuation()
        else:
            super().load_state_dict(state_dict)

    @classmethod
    def create_scheduler_fn(
        cls,
        total_num_epochs: int | PlaceholderExpression = TrainerPlaceholderValues.NUM_EPOCHS,
        num_update_steps_per_epoch: (
            int | PlaceholderExpression
        ) = TrainerPlaceholderValues.PER_PROCESS_NUM_UPDATE_STEPS_PER_EPOCH,
        num_warmup_epochs: float | PlaceholderExpression | None = None,
        decay_phase_ratio: float = 0.1,
        lr_min: float = 1e-6,
        warmup_starting_lr: float = 1e-6,
        use_inverse_sqrt_decay: bool = True,
        num_checkpoints: int = 1,
        is_continuation_from_checkpoint: bool = False,
    ) -> Callable[[Optimizer], Self]:
        """Return a factory for `train(create_scheduler_fn=...)`, sized by the run unless told otherwise."""
        warmup = None if num_warmup_epochs is None else num_update_steps_per_epoch * num_warmup_epochs
        arguments: dict[str, Any] = {
            "num_epochs": total_num_epochs,
            "num_update_steps_per_epoch": num_update_steps_per_epoch,
            "num_warmup_steps": warmup,
            "decay_phase_ratio": decay_phase_ratio,
            "lr_min": lr_min,
            "warmup_starting_lr": warmup_starting_lr,
            "use_inverse_sqrt_decay": use_inverse_sqrt_decay,
            "num_checkpoints": num_checkpoints,
            "is_continuation_from_checkpoint": is_continuation_from_checkpoint,
        }
        return partial(cls, **arguments)

    def _length(self, epochs: int | None, per_epoch: int | None, total_steps: int | None) -> int:
        if (total_steps is None) == (epochs is None) or (epochs is None) != (per_epoch is None):
            raise ConfigError(
                f"{type(self).__name__} takes either total_steps, or num_epochs with num_update_steps_per_epoch; got "
                f"total_steps={total_steps}, num_epochs={epochs}, num_update_steps_per_epoch={per_epoch}"
            )
        if total_steps is not None:
            return checks.steps(self, "total_steps", total_steps, minimum=1)
        counted = checks.steps(self, "num_update_steps_per_epoch", per_epoch, minimum=1)
        return checks.steps(self, "num_epochs", epochs, minimum=1) * counted

    def _set_length(self, total_steps: int) -> None:
        total = checks.steps(self, "total_steps", total_steps, minimum=1)
        periods = self._periods(total)
        warmup = self._warmup(total, periods[0]["pre_decay_step"])
        self.total_steps, self.checkpoint_decay_info, self.num_warmup_steps = total, periods, warmup

    def _periods(self, total_steps: int) -> list[Period]:
        ends = estimate_checkpoint_steps(total_steps, self.num_checkpoints)
        if ends[0] == 0:
            raise ConfigError(
                f"{type(self).__name__}: {total_steps} steps are too few for num_checkpoints={self.num_checkpoints}, "
                "each of which lies at half of the next"
            )
        return [self._period(start, end) for start, end in zip([0, *ends], ends, strict=False)]

    def _period(self, start: int, end: int) -> Period:
        decay_steps = int((end - start) * self.decay_phase_ratio)
        if self.decay_phase_ratio > 0:
            decay_steps = max(1, decay_steps)
        return Period(period_start=start, period_end=end, decay_steps=decay_steps, pre_decay_step=end - decay_steps)

    def _warmup(self, total_steps: int, first_decay: int) -> float:
        if self.is_continuation_from_checkpoint:
            return 0
        if self._asked_warmup is None:
            return min(int(0.01 * total_steps), first_decay)
        warmup = checks.number(self, "num_warmup_steps", self._asked_warmup)
        if warmup > first_decay:
            raise ConfigError(
                f"{type(self).__name__}: num_warmup_steps={warmup:g} is longer than the {first_decay} steps "
                "before the first decay"
            )
        return warmup

    def _check_warmup_start(self) -> None:
        highest = max(self.base_lr_values)
        if self.num_warmup_steps and self.warmup_starting_lr > highest:
            raise ConfigError(
                f"{type(self).__name__}: warmup_starting_lr={self.warmup_starting_lr} is above the highest base "
                f"rate, {highest}"
            )

    def _period_at(self, step: float) -> Period:
        # A checkpoint's own step belongs to the next period: the update after a checkpoint is a stable one.
        for period in self.checkpoint_decay_info:
            if step < period["period_end"]:
                return period
        return self.checkpoint_decay_info[-1]
