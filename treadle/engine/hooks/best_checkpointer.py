"""Saves the run when a metric is better than ever."""

import logging
import math
from typing import Any

from treadle.callbacks import WatchesMetric
from treadle.engine import dist
from treadle.engine.hook_base import HookBase
from treadle.engine.watched import require_reported
from treadle.errors import ConfigError

logger = logging.getLogger(__name__)


class BestCheckpointer(HookBase):
    """Saves as `model_best`, after each evaluation that found a new best value; put it after `EvalHook`.

    All processes save together, as the first one decides. A value that is nan or infinite never wins. The best value
    is part of every checkpoint, so that a resumed run goes on comparing. A metric that the first evaluation does not
    report ends the run.

    Args:
        eval_period: Iterations between two evaluations; 0 looks at the end only.
        checkpointer: What saves, usually `trainer.checkpointer`.
        val_metric: The metric to judge by, as evaluation reports it: `Acc@1`, or `a/b/c` if it is nested.
        mode: "max" if greater is better, "min" if smaller is.
        file_prefix: The name to save under.
        chosen: Whether somebody chose the metric; that a usual one is not reported is said, and ends no run.
    """

    together = True

    def __init__(
        self,
        eval_period: int,
        checkpointer: Any,
        val_metric: str,
        mode: str = "max",
        file_prefix: str = "model_best",
        *,
        chosen: bool = True,
    ) -> None:
        if mode not in ("max", "min"):
            raise ConfigError(f"BestCheckpointer(mode={mode!r}): use 'max' or 'min'")
        self._period = eval_period
        self._checkpointer = checkpointer
        self._metric = val_metric
        self._best = WatchesMetric(val_metric, greater_is_better=mode == "max")
        self._name = file_prefix
        self._chosen = chosen
        self.best_iter: int | None = None

    @property
    def best_metric(self) -> float | None:
        """The best value so far; None before the first."""
        return self._best.best_metric

    def after_step(self) -> None:
        """Compare if there was an evaluation."""
        done = self.trainer.iter + 1
        if self._period and done % self._period == 0 and done < self.trainer.max_iter:
            self._compare()

    def after_train(self) -> None:
        """Compare the final evaluation."""
        if self.trainer.failure is None:
            self._compare()

    def _compare(self) -> None:
        found = self.trainer.storage.latest().get(self._metric)
        require_reported("BestCheckpointer", self._metric, self.trainer, chosen=self._chosen)
        if dist.broadcast_from_main(self._judge(found)):
            value, iteration = found if found is not None else (math.nan, self.trainer.iter)
            self._best.best_metric, self.best_iter = dist.broadcast_from_main((float(value), int(iteration)))
            self._checkpointer.save(self._name, best=True)
            logger.info("%s is %.5g, better than ever: saved as %s", self._metric, self.best_metric, self._name)

    def _judge(self, found: tuple[Any, int] | None) -> bool:
        if found is None:
            if not self.trainer.evaluated:
                logger.warning("BestCheckpointer watches %r, and the evaluation reported no number", self._metric)
            return False
        value, iteration = found
        if not math.isfinite(value):
            logger.warning("%s is %s and not taken as the best", self._metric, value)
            return False
        seen = self.best_iter is not None and iteration <= self.best_iter
        return not seen and self._best.is_better(float(value))

    def state_dict(self) -> dict[str, Any]:
        """Return the best value and its iteration."""
        return {"best_metric": self.best_metric, "best_iter": self.best_iter}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the best value and its iteration."""
        self._best.best_metric, self.best_iter = state["best_metric"], state["best_iter"]
