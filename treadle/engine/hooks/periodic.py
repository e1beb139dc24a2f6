"""Saves the run every so many iterations, and at the end."""

from collections.abc import Sequence
from typing import Any

from treadle.engine.hooks.base import HookBase
from treadle.errors import ConfigError

# Lets writers write


class PeriodicWriter(HookBase):
    """Has writers write every so many iterations and at the end, then closes them; put it last.

    Args:
        writers: What writes; each has `write()` and `close()`.
        period: Iterations between two times.
    """

    writes = True

    def __init__(self, writers: Sequence[Any], period: int = 20) -> None:
        if period < 1:
            raise ConfigError(f"PeriodicWriter(period={period}) must be at least 1")
        for writer in writers:
            if not hasattr(writer, "write"):
                raise TypeError(f"{writer!r} is no writer: it has no write(); derive its class from EventWriter")
        self._writers = list(writers)
        self._period = period

    def after_step(self) -> None:
        """Write if it is time."""
        done = self.trainer.iter + 1
        if done % self._period == 0 or done == self.trainer.max_iter:
            for writer in self._writers:
                writer.write()

    def after_train(self) -> None:
        """Write what the end of the run brought, and close; one writer's failure hides no other's."""
        failures: list[Exception] = []
        for writer in self._writers:
            for action in (writer.write, writer.close):
                try:
                    action()
                except Exception as error:
                    failures.append(error)
        for failure in failures[1:]:
            failures[0].add_note(f"another writer failed too: {type(failure).__name__}: {failure}")
        if failures:
            raise failures[0]

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the writers that have one."""
        stateful = {str(place): writer for place, writer in enumerate(self._writers) if hasattr(writer, "state_dict")}
        return {place: writer.state_dict() for place, writer in stateful.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Hand the writers their states."""
        for place, entry in state.items():
            if int(place) < len(self._writers) and hasattr(self._writers[int(place)], "load_state_dict"):
                self._writers[int(place)].load_state_dict(entry)


class PeriodicCheckpointer(HookBase):
    """Saves as `model_0000019` every so many iterations and as `model_final` at the end.

    In a loop of your own, without a trainer, call `step(iteration)` after each iteration.

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
        """Save if it is time, after an iteration of a loop of your own.

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
