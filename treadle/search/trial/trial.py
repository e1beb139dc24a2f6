"""One trial while it runs: what it reports is checked, stored, and answered."""

import json
import logging
import time
from typing import TYPE_CHECKING, Any

from treadle.errors import NonFiniteError
from treadle.search.store.database import NOTE_BYTES
from treadle.search.store.history import FLAGGED, REPORT, RUNG
from treadle.search.trial.objectives import Objective
from treadle.search.trial.pruning import TrialPruner
from treadle.search.trial.reports import Metrics, PrunedError, ReportError, nonfinite_names, objective_values, shown

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from treadle.search.store.store import Store

logger = logging.getLogger(__name__)

NONFINITE = ("fail", "prune")
"""What may become of a trial that reports nan or infinity."""


class RunningTrial:
    """Takes the reports of one trial.

    Args:
        store: Where they are kept.
        trial: The trial.
        objectives: What drives the search.
        pruner: What may stop the trial; None is nothing.
        nonfinite: "fail" fails a trial whose final result is nan or infinite and only flags such results before the
            end; "prune" stops a trial at the first of them.
        rung: The rung that its result is of, if there are others behind it; None takes the result for the final one.
        last_step: The step of the last intermediate result before it was paused.
        budget: The step that its result stands at in the curve of a trial that reports nothing else; None leaves it.

    Attributes:
        last_step: The step of the last intermediate result; -1 if there was none.
        lacking: What was reported without an objective, and which, in words; None if nothing was.
    """

    def __init__(
        self,
        store: "Store",
        trial: "FrozenTrial",
        objectives: tuple[Objective, ...],
        pruner: Any,
        nonfinite: str,
        *,
        rung: int | None = None,
        last_step: int = -1,
        budget: int | None = None,
    ) -> None:
        self.trial = trial
        self.values: list[float] | None = None
        self.metrics: Metrics = {}
        self.stopped = False
        self.lacking: str | None = None
        self.began = time.monotonic()
        self._store = store
        self._names = [objective.name for objective in objectives]
        self._pruning = TrialPruner(store, trial, pruner)
        self._nonfinite = nonfinite
        self.rung, self.last_step, self._budget = rung, last_step, budget
        self._began_behind = last_step
        self._curve: dict[int, float] = {}
        self._flagged: list[Any] = []

    @property
    def finished(self) -> bool:
        """Whether the final result has been reported."""
        return self.values is not None

    @property
    def has_reported(self) -> bool:
        """Whether there was an intermediate result this time."""
        return self.last_step > self._began_behind

    @property
    def last_value(self) -> float | None:
        """The last intermediate result that is finite; None if there is none."""
        return next(reversed(self._curve.values()), None)

    def intermediate(self, metrics: Metrics, step: int | None) -> bool:
        """Take an intermediate result, and return whether the trial is to stop.

        Raises:
            ReportError: It comes after the final result, with a step that has passed, or without the objective.
        """
        if self.finished:
            raise ReportError(f"an intermediate result ({shown(metrics)}) came after the final one; report it before")
        if step is not None and step <= self.last_step:
            raise ReportError(f"step={step} was reported after step {self.last_step}; steps must grow")
        self.last_step = self.last_step + 1 if step is None else step
        value = self._driving(metrics)
        self._keep(metrics, value)
        self.stopped = self.stopped or self._stops(metrics, value)
        return self.stopped

    def _stops(self, metrics: Metrics, value: float | None) -> bool:
        if nonfinite_names(metrics):
            self._flag(metrics, self.last_step)
            if self._nonfinite == "prune":
                return True
        if value is None or nonfinite_names({"": value}):
            return False  # nothing that a pruner could compare
        self._curve[self.last_step] = value
        return self._pruning.stops(self.last_step, value)

    def final(self, metrics: Metrics) -> None:
        """Take the final result.

        Raises:
            ReportError: There was one before, or an objective is missing.
            NonFiniteError: An objective is nan or infinite.
            PrunedError: It is, and such trials are to be pruned.
        """
        if self.stopped:
            raise PrunedError(f"trial {self.trial.number} was told to stop, and reports a final result all the same")
        if self.values is not None:
            raise ReportError(
                f"a final result was reported twice (first {self.values}, then {shown(metrics)}); report it once, at "
                "the end, and others by report_intermediate_result"
            )
        values = self._values(metrics, "the final result")
        bad = nonfinite_names(dict(zip(self._names, values, strict=True)))
        if nonfinite_names(metrics):
            self._flag(metrics, None)
        if bad:
            self._refuse(metrics, bad)
        self._require_room(metrics, "the final result")
        if self._budget is not None and self.last_step < 0:
            self._report_at(self._budget, values[0])
        if self.rung is None:
            self._store.note_result(self.trial, metrics)
        else:
            # What the result is, and where the trial continues to count.
            self._store.note_result(self.trial, {"metrics": metrics, "last": self.last_step}, f"{RUNG}:{self.rung}")
        self.values, self.metrics = values, metrics

    def _report_at(self, budget: int, value: float) -> None:
        """Have the result in the curve of a trial that has reported nothing this time."""
        known = max(self.trial.intermediate_values, default=-1)
        is_at_first_rung = not any(name.startswith(f"{RUNG}:") for name in self.trial.user_attrs)
        if is_at_first_rung and known not in (-1, budget):
            self.last_step = known  # it reported everything before it was killed
        else:
            self._store.report(self.trial, budget, value)

    def _refuse(self, metrics: Metrics, bad: list[str]) -> None:
        text = f"the final result of trial {self.trial.number} is not finite: {shown(metrics)}"
        if self._nonfinite == "prune":
            raise PrunedError(text)
        raise NonFiniteError(f"{text}; lower the learning rate, or set nonfinite='prune' to count such trials as bad")

    def _driving(self, metrics: Metrics) -> float | None:
        """Return the value that pruners look at: that of the first objective."""
        if len(self._names) > 1:
            return metrics.get(self._names[0])
        return self._values(metrics, "an intermediate result")[0]

    def _values(self, metrics: Metrics, what: str) -> list[float]:
        try:
            return objective_values(metrics, self._names, what)
        except ReportError as error:
            self.lacking = str(error)
            raise

    def _keep(self, metrics: Metrics, value: float | None) -> None:
        if len(metrics) > 1 or value is None:
            self._require_room(metrics, "an intermediate result")
            self._store.note(self.trial, f"{REPORT}:{self.last_step}", metrics)
        if value is not None:
            self._store.report(self.trial, self.last_step, value)

    def _require_room(self, metrics: Metrics, what: str) -> None:
        size = len(json.dumps(metrics))
        if size > NOTE_BYTES:
            raise ReportError(
                f"{what} of trial {self.trial.number} has {len(metrics)} metrics, {size} bytes; a search keeps "
                f"{NOTE_BYTES}: report those that compare trials, and write the others to a file"
            )

    def _flag(self, metrics: Metrics, step: int | None) -> None:
        where = "finally" if step is None else f"at step {step}"
        logger.warning("trial %d reported %s %s, which is not finite", self.trial.number, shown(metrics), where)
        self._flagged.append([step, nonfinite_names(metrics)])
        self._store.note(self.trial, FLAGGED, list(self._flagged))
