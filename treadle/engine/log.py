"""Numbers of this door: those that are not finite, and what evaluations reported, as callbacks look for it."""

import math
import os
from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.console.metric_names import find_name
from treadle.errors import NonFiniteError
from treadle.events import RunHistory
from treadle.loop import Log
from treadle.loop.nonfinite import REMEDY, REMEDY_FOR_DATA, RollBack
from treadle.loop.nonfinite_data import find_nonfinite_data
from treadle.precision.fallback import fell_back
from treadle.writers import CommonMetricPrinter, EventWriter, JSONWriter, TensorboardXWriter

if TYPE_CHECKING:
    from treadle.engine.core import EngineCore
    from treadle.engine.trainers.base import TrainerBase

# The writers that a run has if nobody says otherwise


def default_writers(
    output_dir: str | os.PathLike[str],
    max_iter: int | None = None,
    *,
    batch_size: int | None = None,
    told: Collection[str] = (),
) -> list[EventWriter]:
    """Return the writers for a run in `output_dir`: the console, `metrics.json` and, if it is installed, TensorBoard.

    Args:
        output_dir: The folder of the run.
        max_iter: The iteration at which the run ends; None shows no time to go.
        batch_size: The samples of one iteration, to tell the throughput where nobody measures it.
        told: Names of metrics that the console has in lines of their own.
    """
    folder = Path(output_dir)
    writers: list[EventWriter] = [
        CommonMetricPrinter(batch_size, max_iter, told=told),
        JSONWriter(folder / "metrics.json"),
    ]
    if find_spec("tensorboard") is not None:
        writers.append(TensorboardXWriter(os.fspath(folder)))
    return writers


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
        found = self._evaluated_name(metric_name)
        if found is None:
            return super().get_metric_values(metric_name)
        return list(self.storage.series(found, "step").values)

    def get_latest_metric(self, metric_name: str) -> Any:
        """Return the newest value of a metric."""
        found = self._evaluated_name(metric_name)
        if found is None:
            return super().get_latest_metric(metric_name)
        return self.storage.series(found, "step").values[-1]

    def _evaluated_name(self, name: str) -> str | None:
        known = set(self._face.evaluated) & self.storage.names("step")
        found = find_name(name, known, evaluated=True)
        return found if found in known else None


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
        if not self.trainer.skips_nonfinite_updates:
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
        data = find_nonfinite_data(self.trainer, iteration + 1)
        found = "" if data is None else f": {data}"
        raise NonFiniteError(
            f"{name} is {value} at iteration {iteration}{found}; {REMEDY if data is None else REMEDY_FOR_DATA}"
        )
