"""Ends a run whose metric no longer gets better."""

import math
from typing import Any

from treadle.callbacks import EarlyStoppingCallback
from treadle.engine.hook_base import HookBase
from treadle.engine.watched import require_reported
from treadle.errors import ConfigError, StopTrainingError


class EarlyStop(HookBase):
    """Asks to stop when a metric was not better than its best for some evaluations; put it after `EvalHook`.

    Its patience is that of `EarlyStoppingCallback`. A metric that the first evaluation does not report ends the run.

    Args:
        val_metric: The metric to watch, as evaluation reports it.
        patience: How many evaluations in a row may bring nothing better.
        mode: "max" if greater is better, "min" if smaller is.
    """

    def __init__(self, val_metric: str, patience: int = 5, mode: str = "max") -> None:
        if mode not in ("max", "min") or patience < 1:
            raise ConfigError(f"EarlyStop(patience={patience}, mode={mode!r}): use 1 or more, and 'max' or 'min'")
        self._metric = val_metric
        self._sign = 1.0 if mode == "max" else -1.0
        self._patience = EarlyStoppingCallback(patience, 0.0, val_metric, greater_is_better=mode == "max")
        self._seen = -1

    def after_step(self) -> None:
        """Look at the newest value, if there was an evaluation; nothing else is worth reading the device for."""
        if self.trainer.evaluated_at <= self._seen:
            return
        self._seen = self.trainer.evaluated_at
        require_reported("EarlyStop", self._metric, self.trainer)
        value, _ = self.trainer.storage.latest().get(self._metric, (math.nan, -1))
        try:
            self._patience.new_value(self.trainer.core, float(value))
        except StopTrainingError:
            waited = self._patience.early_stopping_counter
            self.trainer.request_stop(f"{self._metric} did not get better in {waited} evaluations", for_good=True)

    def state_dict(self) -> dict[str, Any]:
        """Return the best value and how long ago it was."""
        known = self._patience.best_metric
        best = -math.inf if known is None else self._sign * known
        return {"best": best, "waited": self._patience.early_stopping_counter, "seen": self._seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the best value and how long ago it was."""
        best, self._seen = float(state["best"]), int(state["seen"])
        self._patience.best_metric = None if best == -math.inf else self._sign * best
        self._patience.early_stopping_counter = int(state["waited"])
