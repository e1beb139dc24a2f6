"""`CosineLrScheduler`: a cosine in epochs and absolute rates, with the arguments of pytorch-accelerated."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Self

from torch.optim import Optimizer

from treadle.errors import ConfigError
from treadle.schedules import base as checks
from treadle.schedules import shapes
from treadle.schedules.base import Schedule
from treadle.schedules.placeholders import PlaceholderExpression, TrainerPlaceholderValues


class CosineLrScheduler(Schedule):
    """Warm up in a straight line, go down half a cosine wave, and hold the minimum.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    >>> scheduler = CosineLrScheduler(
    ...     optimizer, total_num_epochs=4, num_update_steps_per_epoch=1, num_warmup_epochs=1, lr_min=0.0
    ... )
    >>> [round(scheduler.value(step, base=1.0), 6) for step in range(6)]
    [1e-06, 1.0, 0.75, 0.25, 0.0, 0.0]

    Args:
        optimizer: whose groups to write.
        total_num_epochs: the length in epochs, warm-up and cool-down included.
        num_update_steps_per_epoch: the optimizer updates of one epoch.
        k_decay: above 1 stays high for longer.
        lr_min: the rate at the end, for all groups.
        min_lr_ratio: the rate at the end as a share of each group's own; overrules `lr_min`.
        num_warmup_epochs: how many epochs the rate takes to reach its base value.
        warmup_starting_lr: the rate of the first update of a warm-up, for all groups.
        warmup_starting_lr_ratio: the same as a share of each group's own; overrules `warmup_starting_lr`.
        num_cooldown_epochs: how many epochs at the end run at the minimum.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        total_num_epochs: float,
        num_update_steps_per_epoch: int,
        k_decay: float = 1.0,
        lr_min: float = 1e-6,
        min_lr_ratio: float | None = None,
        num_warmup_epochs: float = 0,
        warmup_starting_lr: float = 1e-6,
        warmup_starting_lr_ratio: float | None = None,
        num_cooldown_epochs: float = 0,
    ) -> None:
        per_epoch = checks.steps(self, "num_update_steps_per_epoch", num_update_steps_per_epoch, minimum=1)
        epochs = checks.number(self, "total_num_epochs", total_num_epochs)
        self.k_decay = checks.positive(self, "k_decay", k_decay)
        self.lr_min = checks.number(self, "lr_min", lr_min)
        self.lr_min_ratio = _optional_ratio(self, "min_lr_ratio", min_lr_ratio)
        self.warmup_lr_init = checks.number(self, "warmup_starting_lr", warmup_starting_lr)
        self.warmup_lr_ratio = _optional_ratio(self, "warmup_starting_lr_ratio", warmup_starting_lr_ratio)
        self.warmup_iterations = per_epoch * checks.number(self, "num_warmup_epochs", num_warmup_epochs)
        self.num_cooldown_iterations = per_epoch * checks.number(self, "num_cooldown_epochs", num_cooldown_epochs)
        super().__init__(optimizer, self._checked_length(round(epochs * per_epoch)))

    @property
    def total_iterations(self) -> int:
        """The length in optimizer updates."""
        return self._given_length

    def value(self, step: float, base: float) -> float:
        """Return the rate at `step` of a group whose base rate is `base`."""
        if step < self.warmup_iterations:
            start = self.warmup_lr_init if self.warmup_lr_ratio is None else self.warmup_lr_ratio * base
            return shapes.interpolate(start, base, step / self.warmup_iterations)
        length = self.total_iterations - self.num_cooldown_iterations - self.warmup_iterations
        progress = min(1.0, (step - self.warmup_iterations) / length)
        minimum = self.lr_min if self.lr_min_ratio is None else self.lr_min_ratio * base
        return shapes.interpolate(minimum, base, shapes.cosine(progress, 0.0, self.k_decay))

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to the step where the scheduler that gave `state_dict` stood.

        A state that pytorch-accelerated saved is read too; its count is one behind the updates done.
        """
        if "total_iterations" in state_dict:
            state_dict = {"num_updates": self._entry(state_dict, "num_updates") + 1}
        super().load_state_dict(state_dict)

    @classmethod
    def create_scheduler_fn(
        cls,
        total_num_epochs: float | PlaceholderExpression = TrainerPlaceholderValues.NUM_EPOCHS,
        num_update_steps_per_epoch: int | PlaceholderExpression = TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH,
        k_decay: float = 1.0,
        lr_min: float = 1e-6,
        min_lr_ratio: float | None = None,
        num_warmup_epochs: float | PlaceholderExpression = 0,
        warmup_starting_lr: float = 1e-6,
        warmup_starting_lr_ratio: float | None = None,
        num_cooldown_epochs: float | PlaceholderExpression = 0,
    ) -> Callable[[Optimizer], Self]:
        """Return a factory for `train(create_scheduler_fn=...)`, sized by the run unless told otherwise."""
        arguments: dict[str, Any] = {
            "total_num_epochs": total_num_epochs,
            "num_update_steps_per_epoch": num_update_steps_per_epoch,
            "k_decay": k_decay,
            "lr_min": lr_min,
            "min_lr_ratio": min_lr_ratio,
            "num_warmup_epochs": num_warmup_epochs,
            "warmup_starting_lr": warmup_starting_lr,
            "warmup_starting_lr_ratio": warmup_starting_lr_ratio,
            "num_cooldown_epochs": num_cooldown_epochs,
        }
        return partial(cls, **arguments)

    def _checked_length(self, total_steps: int) -> int:
        total = checks.steps(self, "total_num_epochs * num_update_steps_per_epoch", total_steps, minimum=1)
        if self.warmup_iterations + self.num_cooldown_iterations >= total:
            raise ConfigError(
                f"{type(self).__name__}: {self.warmup_iterations:g} steps of warm-up and "
                f"{self.num_cooldown_iterations:g} of cool-down leave nothing of {total} for the cosine; "
                "total_num_epochs includes num_warmup_epochs and num_cooldown_epochs"
            )
        return total


def _optional_ratio(owner: object, name: str, value: float | None) -> float | None:
    return None if value is None else checks.ratio(owner, name, value)
