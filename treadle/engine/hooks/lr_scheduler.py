"""Moves the learning rate on, and reports it."""

from collections import Counter
from typing import Any

from torch.optim import Optimizer

from treadle.engine.hooks.base import HookBase
from treadle.errors import ConfigError
from treadle.schedules import LRMultiplier
from treadle.schedules.extend import StretchedSchedule, schedule_settings


class LRScheduler(HookBase):
    """Reports the rate of each iteration as `lr`, then moves the schedule on; without it the rate is constant.

    A run that is continued with more iterations follows the longer schedule from there.

    Args:
        optimizer: Whose rate to report; by default the trainer's.
        scheduler: The schedule, or a function that returns what the rates are multiplied by for how much of the run is
            done, from 0 to below 1; by default the trainer's `lr_scheduler`.
    """

    unique = True

    def __init__(self, optimizer: Optimizer | None = None, scheduler: Any = None) -> None:
        self._optimizer = optimizer
        self._scheduler = scheduler
        self._multiplier: LRMultiplier | None = None
        self._moves = 0
        self._as_built: StretchedSchedule | None = None
        self._settings: dict[str, Any] = {}

    def attach(self, trainer: Any) -> None:
        """Belong to `trainer`; take note of how the schedule was built, before a checkpoint is loaded."""
        super().attach(trainer)
        if self._multiplies:
            return
        if self._scheduler is not None or getattr(trainer, "lr_scheduler", None) is not None:
            self._as_built = StretchedSchedule(self.scheduler, 0)
            self._settings = schedule_settings(self.scheduler.state_dict())

    @property
    def _multiplies(self) -> bool:
        """Whether the schedule is a function of how far the run is."""
        return callable(self._scheduler) and not hasattr(self._scheduler, "step")

    @property
    def own_scheduler(self) -> Any:
        """The schedule that it was given; None if it takes the trainer's."""
        return self._scheduler

    @property
    def optimizer(self) -> Any:
        """The optimizer whose rate is reported."""
        return getattr(self.trainer, "optimizer", None) if self._optimizer is None else self._optimizer

    @property
    def scheduler(self) -> Any:
        """The schedule."""
        if self._multiplier is not None:
            return self._multiplier
        scheduler = getattr(self.trainer, "lr_scheduler", None) if self._scheduler is None else self._scheduler
        if scheduler is None:
            raise ConfigError("hooks.LRScheduler finds no schedule; pass scheduler=, or give the trainer lr_scheduler")
        return scheduler

    def before_train(self) -> None:
        """Check that there is a schedule, or make one of a function of how far the run is."""
        if self._multiplies and self.optimizer is not None:
            done = self.trainer.iter
            self._multiplier = LRMultiplier(self.optimizer, self._scheduler, self.trainer.max_iter, done - 1)
        if not hasattr(self.scheduler, "step") or self.optimizer is None:
            raise ConfigError(f"hooks.LRScheduler: {self.scheduler!r} is no schedule of an optimizer")
        self._group = reported_group(self.optimizer)

    def after_step(self) -> None:
        """Report the rate that the iteration used, then move on."""
        rate = self.optimizer.param_groups[self._group]["lr"]
        self.trainer.storage.put_scalar("lr", rate, smoothing_hint=False)
        self.scheduler.step()
        self._moves += 1

    def state_dict(self) -> dict[str, Any]:
        """Return the place in the schedule."""
        return {"scheduler": self.scheduler.state_dict(), "moves": self._moves}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to the place; a schedule that was set up for another length keeps its own."""
        saved, self._moves = state["scheduler"], int(state["moves"])
        if self._multiplies and self._multiplier is None:
            return  # it comes again when the run has started
        if self._as_built is not None and schedule_settings(saved) != self._settings:
            self._as_built.go_to(self._moves)
        else:
            self.scheduler.load_state_dict(saved)


def reported_group(optimizer: Optimizer) -> int:
    """Return which group's rate stands for all: the largest, or one with the commonest rate if each has one tensor."""
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    if max(sizes) > 1:
        return sizes.index(max(sizes))
    rates = [group["lr"] for group in optimizer.param_groups]
    return rates.index(Counter(rates).most_common(1)[0][0])
