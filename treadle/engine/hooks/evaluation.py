"""Evaluates now and then, and at the end."""

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

from treadle.callbacks import EarlyStoppingCallback, WatchesMetric
from treadle.console.lines import number, short
from treadle.console.metric_names import find_name
from treadle.data import RandomState
from treadle.engine import dist
from treadle.engine.hooks.base import HookBase
from treadle.errors import ConfigError, StopTrainingError, UnknownMetricError, did_you_mean
from treadle.events import flatten_results

# Metrics that hooks watch, and that evaluations must report


def newest_value(trainer: Any, metric: str) -> tuple[Any, int] | None:
    """Return the newest value of a metric and its iteration, by any name of it; None if nothing reported it."""
    latest: dict[str, tuple[Any, int]] = trainer.storage.latest()
    return latest.get(metric) or latest.get(find_name(metric, trainer.evaluated, evaluated=True))


def require_reported(hook: str, metric: str, trainer: Any, *, chosen: bool = True) -> None:
    """Make sure, on all processes together, that a metric was reported, if an evaluation has reported anything.

    Args:
        hook: Who watches it.
        metric: Its name.
        trainer: Whose evaluations report.
        chosen: Whether somebody asked for it; that a usual one is absent is only said.

    Raises:
        UnknownMetricError: It was not; the message has the names that were.
    """
    known = trainer.evaluated
    told = ""
    if known and metric not in trainer.storage.names() and find_name(metric, known, evaluated=True) not in known:
        told = (
            f"{hook} watches {metric!r}, but the evaluation reported {sorted(known)}; set "
            f"{'train.evaluation.eval_metric' if hook == 'BestCheckpointer' else 'val_metric='} to one of these"
            f"{did_you_mean(metric, known)}"
        )
    # The first process decides: an evaluation may report to that one only.
    told = dist.broadcast_from_main(told)
    if told and not chosen:
        logger.warning("%s", told)
    elif told:
        raise UnknownMetricError(told)


class EvalHook(HookBase):
    """Calls a function every so many iterations, and once more at the end, and reports the numbers it returns.

    Nested dicts are reported as `a/b/c`. Callbacks are told before and after it, as of an evaluation within an epoch.
    No random generator that the training draws from is moved. On several processes the function finds the same model
    on each, with the buffers of the first.

    Args:
        eval_period: Iterations between two evaluations; 0 evaluates at the end only.
        eval_function: Called without arguments, returns numbers by name, or nested dicts of them.
        eval_after_train: Whether to evaluate at the end of a run that did not fail.
    """

    together = evaluates = True

    def __init__(self, eval_period: int, eval_function: Callable[[], Any], eval_after_train: bool = True) -> None:
        if eval_period < 0:
            raise ConfigError(f"eval_period={eval_period} must be 0, for the end only, or a number of iterations")
        self._period = eval_period
        self._function = eval_function
        self._at_end = eval_after_train
        self._evaluated_at = -1

    def before_train(self) -> None:
        """Forget what an earlier run evaluated."""
        self._evaluated_at = -1

    def after_step(self) -> None:
        """Evaluate if it is time; the last time is left to the end."""
        done = self.trainer.iter + 1
        if self._period and done % self._period == 0 and done < self.trainer.max_iter:
            self._evaluate(done)

    def after_train(self) -> None:
        """Evaluate at the end, unless the run failed or was stopped right after an evaluation."""
        if self._at_end and self.trainer.failure is None and self._evaluated_at != self.trainer.iter:
            self._evaluate(self.trainer.iter)

    def _evaluate(self, done: int) -> None:
        core = self.trainer.core
        core.parallel.share_buffers(core.model)
        with RandomState().kept():
            core.fire("on_eval_epoch_start", is_intermediate=True)
            results = self._function()
        # Its own as well: another hook may have evaluated something else here.
        self.trainer.evaluated_at = self._evaluated_at = done
        if results is not None:
            if not isinstance(results, Mapping):
                raise ConfigError(f"the evaluation returned a {type(results).__name__}; return a dict of numbers")
            for name, value in flatten_results(results).items():
                if name not in self.trainer.evaluated:
                    self.trainer.evaluated.append(name)
                self.trainer.storage.put_scalar(name, value, smoothing_hint=False)
        core.fire("on_eval_epoch_end", is_intermediate=True)
        # Evaluation may take unequal time on the processes; the step that follows is made together.
        dist.synchronize()


# Saves the run when a metric is the best so far


logger = logging.getLogger(__name__)


class BestCheckpointer(HookBase):
    """Saves as `model_best`, after each evaluation that found a new best value; put it after `EvalHook`.

    All processes save together, as the first one decides. A value that is nan or infinite never wins. The best value
    is part of every checkpoint, so that a resumed run compares with it. A metric that the first evaluation does not
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
        found = newest_value(self.trainer, self._metric)
        require_reported("BestCheckpointer", self._metric, self.trainer, chosen=self._chosen)
        if dist.broadcast_from_main(self._judge(found)):
            value, iteration = found if found is not None else (math.nan, self.trainer.iter)
            self._best.best_metric, self.best_iter = dist.broadcast_from_main((float(value), int(iteration)))
            self._checkpointer.save(self._name, best=True)
            logger.info("*best  %s %s, saved as %s", short(self._metric), number(self.best_metric), self._name)

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


# Ends a run whose metric no longer gets better


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
        value, _ = newest_value(self.trainer, self._metric) or (math.nan, -1)
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
