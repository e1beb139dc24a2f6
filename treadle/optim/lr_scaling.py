"""Learning rates that follow the size of the batch."""

import math
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer

from treadle.errors import ConfigError, did_you_mean, require_positive

RULES = ("none", "linear", "sqrt")


@dataclass(frozen=True)
class LRScaling:
    """How the learning rate is made to fit another batch than the one it was found with.

    >>> LRScaling("linear", reference_batch_size=256).factor(1024)
    4.0
    >>> LRScaling("sqrt", reference_batch_size=256).factor(1024)
    2.0

    Args:
        rule: "linear" multiplies the rate by the ratio of the batches, as is usual for SGD; "sqrt" by its square root,
            as is usual for Adam and its kin; "none" leaves the rate alone.
        reference_batch_size: The samples of one update, on all processes, that the rate was chosen for.
    """

    rule: str = "none"
    reference_batch_size: int | None = None

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            near = did_you_mean(str(self.rule), RULES) or f"; use one of {RULES}"
            raise ConfigError(f"lr_scaling: rule={self.rule!r} is unknown{near}")
        size = self.reference_batch_size
        if size is not None:
            require_positive("lr_scaling: reference_batch_size", size)
        if size is None and self.rule != "none":
            raise ConfigError(
                f"lr_scaling: rule={self.rule!r} needs reference_batch_size=, the samples of one update that the rate "
                "was chosen for"
            )

    def factor(self, batch_size: int | None) -> float:
        """Return what to multiply rates by in a run with updates of `batch_size` samples.

        Raises:
            ConfigError: The size is not known, and the rate depends on it.
        """
        if self.rule == "none":
            return 1.0
        assert self.reference_batch_size is not None
        if batch_size is None:
            raise ConfigError(
                f"lr_scaling: rule={self.rule!r} needs a batch size, and the data comes in batches of an unknown one; "
                "pass a data set or a DataLoader, or set the rate yourself"
            )
        ratio = batch_size / self.reference_batch_size
        return ratio if self.rule == "linear" else math.sqrt(ratio)

    def describe(self, batch_size: int | None) -> str:
        """Return the rule with its numbers, for a log."""
        factor = self.factor(batch_size)
        return (
            f"learning rates are multiplied by {factor:.6g}: {self.rule} in the batch, {batch_size} samples where they "
            f"were chosen for {self.reference_batch_size}"
        )


def scale_rates(optimizer: Optimizer, factor: float) -> None:
    """Multiply the learning rate of every group of an optimizer, before any schedule sees it."""
    for group in optimizer.param_groups:
        for name in ("lr", "initial_lr"):
            if name in group:
                rate: Any = group[name]
                group[name] = rate * factor
