"""Numbers of this door: those that are not finite, and what evaluations reported, as callbacks look for it."""

import math
from typing import TYPE_CHECKING, Any

from treadle.errors import NonFiniteError
from treadle.events import RunHistory
from treadle.falling_back import fell_back
from treadle.loop import Log
from treadle.nonfinite import REMEDY, RollBack

if TYPE_CHECKING:
    from treadle.engine._adapter import EngineCore
    from treadle.engine.trainer_base import TrainerBase


class EngineHistory(RunHistory):
    """The metrics of a run, in which those that evaluations of this door reported are found as well.

    Args:
        face: The trainer whose evaluations report.
    """

    def __init__(self, face: "TrainerBase") -> None:
        super().__init__()
        self._face = face

    def get_metric_names(self) -> set[str]:
        """Return the names of all metrics."""
        return super().get_metric_names() | (set(self._face.evaluated) & self.storage.names("step"))

    def get_metric_values(self, metric_name: str) -> list[Any]:
        """Return every value of a metric, oldest first."""
        if not self._is_of_evaluations(metric_name):
            return super().get_metric_values(metric_name)
        return list(self.storage.series(metric_name, "step").values)

    def get_latest_metric(self, metric_name: str) -> Any:
        """Return the newest value of a metric."""
        known = self._is_of_evaluations(metric_name)
        return self.storage.series(metric_name, "step").values[-1] if known else super().get_latest_metric(metric_name)

    def _is_of_evaluations(self, name: str) -> bool:
        return name in self._face.evaluated and name in self.storage.names("step")


class EngineLog(Log):
    """Reads what was put since the last time, and acts on a number that is not finite; writing is for hooks."""

    trainer: "EngineCore"

    def write(self) -> None:
        """Look at the numbers since the last time."""
        core = self.trainer
        self.take_losses()
        self.put_state_of_updates()
        first, core.checked_to = core.checked_to, core.progress.step
        # In fp16 the norm of a gradient that overflowed is infinite, and the update was left out.
        names = ("total_loss",) if core.precision.scaler is not None else ("total_loss", "grad_norm")
        rows = ((name, place, value) for name in names for place, value in self._recorded(name))
        bad = next((row for row in rows if row[1] >= first and not math.isfinite(row[2])), None)
        if fell_back(core, None if bad is None else f"{bad[0]} is {bad[2]} at iteration {bad[1]}"):
            return
        if bad is not None and core.on_nonfinite != "skip":
            self._act_on(*bad)

    def check_weights(self) -> None:
        """Refuse to keep weights that are not finite."""
        # A number that went wrong says more of the cause than the weights it spoilt. Where bad updates are left out it
        # spoils none, and is acted on when it is due, as in a run that nobody interrupts to save it.
        if not self.trainer.leaves_bad_updates_out:
            self.write()
        super().check_weights()

    def _recorded(self, name: str) -> list[tuple[int, float]]:
        storage = self.trainer.storage
        if name not in storage.names():
            return []
        series = storage.series(name)
        return list(zip(series.steps, series.values, strict=True))

    def _act_on(self, name: str, iteration: int, value: float) -> None:
        if self.trainer.on_nonfinite == "rollback":
            raise RollBack(iteration + 1, value)
        raise NonFiniteError(f"{name} is {value} at iteration {iteration}; {REMEDY}")
