"""Saves the run every so many iterations, and at the end."""

from typing import Any

from treadle.engine.hook_base import HookBase
from treadle.errors import ConfigError


class PeriodicCheckpointer(HookBase):
    """Saves as `model_0000019` every so many iterations and as `model_final` at the end.

    In a loop of one's own, without a trainer, call `step(iteration)` after each iteration.

    Args:
        checkpointer: What saves, usually `trainer.checkpointer`.
        period: Iterations between two checkpoints; 0 saves at the end only.
        max_iter: The iteration after the last; by default that of the run.
        max_to_keep: How many periodic checkpoints are kept; by default what the checkpointer says. The best and the
            final one always stay.
        file_prefix: What the names begin with.
    """

    together = True

    def __init__(
        self,
        checkpointer: Any,
        period: int,
        max_iter: int | None = None,
        max_to_keep: int | None = None,
        file_prefix: str = "model",
    ) -> None:
        if period < 0:
            raise ConfigError(f"checkpointer.period={period} must be 0, for the end only, or a number of iterations")
        if max_to_keep is not None:
            checkpointer.max_to_keep = max_to_keep
        self.checkpointer = checkpointer
        self.period = period
        self.max_iter = max_iter
        self.file_prefix = file_prefix
        self._saved_at = -1

    def after_step(self) -> None:
        """Save if it is time."""
        iteration = self.trainer.iter
        end = self.trainer.max_iter if self.max_iter is None else self.max_iter
        if self.period and (iteration + 1) % self.period == 0:
            self._save(f"{self.file_prefix}_{iteration:07d}", iteration + 1)
        if iteration + 1 >= end:
            self._save(f"{self.file_prefix}_final", iteration + 1)

    def step(self, iteration: int, **facts: Any) -> None:
        """Save if it is time, after an iteration of a loop of one's own.

        Args:
            iteration: The iteration that is done, from 0.
            facts: Plain data to save besides, which `Checkpointer.load` returns with the iteration.
        """
        known = {"iteration": iteration, **facts}
        if self.period and (iteration + 1) % self.period == 0:
            self.checkpointer.save(f"{self.file_prefix}_{iteration:07d}", **known)
        if self.max_iter is not None and iteration + 1 >= self.max_iter:
            self.checkpointer.save(f"{self.file_prefix}_final", **known)

    def after_train(self) -> None:
        """Save the end of a run that was asked to stop."""
        if self.trainer.failure is None and self._saved_at != self.trainer.iter:
            self._save(f"{self.file_prefix}_final", self.trainer.iter)

    def _save(self, name: str, done: int) -> None:
        self._saved_at = done
        self.checkpointer.save(name)

    def state_dict(self) -> dict[str, Any]:
        """Return when the last checkpoint was."""
        return {"saved_at": self._saved_at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take when the last checkpoint was."""
        self._saved_at = int(state["saved_at"])
