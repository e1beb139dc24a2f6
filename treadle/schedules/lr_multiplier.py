"""A schedule by a function of how far the run is."""

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from treadle.errors import ConfigError


class LRMultiplier(LRScheduler):
    """Multiplies the rates that the optimizer was built with by a function of how much of the run is done.

    Args:
        optimizer: Whose rates to move.
        multiplier: Called with a number from 0 to below 1, returns the factor.
        max_iter: How many iterations the run has.
        last_iter: The last iteration that was done; -1 before the first.
    """

    def __init__(
        self, optimizer: Optimizer, multiplier: Callable[[float], float], max_iter: int, last_iter: int = -1
    ) -> None:
        if not callable(multiplier):
            raise ConfigError(f"LRMultiplier(multiplier={multiplier!r}) must be a function of how far the run is")
        if max_iter < 1:
            raise ConfigError(f"LRMultiplier(max_iter={max_iter}) must be at least 1")
        self._multiplier, self._max_iter = multiplier, max_iter
        if last_iter >= 0:
            # A run that goes on: these are the rates of its beginning.
            for group in optimizer.param_groups:
                group.setdefault("initial_lr", group["lr"])
        super().__init__(optimizer, last_epoch=last_iter)

    def get_lr(self) -> list[Any]:
        """Return the rates of the next iteration."""
        factor = self._multiplier(self.last_epoch / self._max_iter)
        return [base * factor for base in self.base_lrs]

    def state_dict(self) -> dict[str, Any]:
        """Return where the schedule is; the function is the program's own."""
        return {"base_lrs": self.base_lrs, "last_epoch": self.last_epoch}
