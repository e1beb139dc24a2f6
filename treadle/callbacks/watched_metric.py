"""What callbacks that watch a metric share: finding new values, comparing them, saying what is missing."""

import math
from difflib import get_close_matches
from typing import Any

from treadle.callback import TrainerCallback
from treadle.errors import ConfigError, UnknownMetricError
from treadle.events.names import direction_of
from treadle.loop.interfaces import RunningTrainer

EVALUATION_LOSS = "eval_loss_epoch"


def evaluates_by_itself(trainer: Any) -> bool:
    """Whether evaluations are made by the door of a trainer, and not on data that `train` is given."""
    return getattr(trainer, "evaluates_by_itself", False)


def reported_by_itself(trainer: Any) -> list[str]:
    """Return the names of what evaluations of such a door have reported."""
    return list(trainer.evaluated)


class WatchesMetric(TrainerCallback):
    """A callback that acts on every new value of one metric; a subclass says how in `new_value`.

    Values are looked for at the end of every epoch, and after evaluations within one.

    Args:
        watch_metric: The name of the metric.
        greater_is_better: Whether a greater value is better.
        reset_on_train: Whether the best value of an earlier run is forgotten when a new one starts. A run that is
            resumed keeps its own in either case.

    Attributes:
        best_metric: The best value so far; None before the first. nan is never better than another value.
    """

    def __init__(self, watch_metric: str, *, greater_is_better: bool, reset_on_train: bool = True) -> None:
        self.watch_metric = watch_metric
        self.greater_is_better = greater_is_better
        self.reset_on_train = reset_on_train
        self.best_metric: float | None = None
        self._values_seen = 0
        self._evaluated = False

    def new_value(self, trainer: RunningTrainer, value: float) -> None:
        """Act on a new value of the metric."""
        raise NotImplementedError

    def reset(self) -> None:
        """Forget the best value."""
        self.best_metric = None

    def is_better(self, value: float, by_more_than: float = 0.0) -> bool:
        """Whether `value` is better than the best so far, and by how much it must be."""
        if math.isnan(value):
            return False
        if self.best_metric is None:
            return True
        gain = value - self.best_metric if self.greater_is_better else self.best_metric - value
        return gain > by_more_than

    def begin_session(self, trainer: RunningTrainer, *, training: bool) -> None:
        """Begin to watch, in a run.

        Raises:
            UnknownMetricError: The loss of evaluations is watched and there is nothing to evaluate on.
        """
        if not training:
            return
        if evaluates_by_itself(trainer):
            self.require_evaluations(trainer)
        elif self.watch_metric == EVALUATION_LOSS and trainer._eval_dataloader is None:
            raise UnknownMetricError(
                f"{self._name} watches {self.watch_metric!r}, but this run has no evaluation data; "
                "pass eval_dataset= to train(), or set watch_metric='train_loss_epoch'"
            )
        if direction_of(self.watch_metric) == "max" and not self.greater_is_better:
            trainer.print(
                f"{self._name} takes the smallest {self.watch_metric} for the best; "
                "greater_is_better=True takes the largest"
            )
        if self.reset_on_train:
            self.reset()
        self._values_seen = len(trainer.run_history.get_metric_values(self.watch_metric))
        self._evaluated = False

    def require_evaluations(self, trainer: Any) -> None:
        """Make sure that somebody evaluates, behind a door that does it by itself.

        Raises:
            UnknownMetricError: Nobody does.
        """
        if not trainer.evaluates and not self.watch_metric.startswith("train_"):
            raise UnknownMetricError(
                f"{self._name} watches {self.watch_metric!r}, but nothing in this run evaluates the model; "
                f"{trainer.HOW_TO_EVALUATE}, or leave the callback out"
            )

    def on_eval_epoch_end(self, trainer: RunningTrainer, is_intermediate: bool = False, **kwargs: Any) -> None:
        """Look for a new value after an evaluation within an epoch.

        Raises:
            UnknownMetricError: Evaluations are no part of an epoch here, and this one did not report the metric.
        """
        self._evaluated = True
        if is_intermediate:
            self._look(trainer)
        if evaluates_by_itself(trainer):
            self._require_metric(trainer)

    def on_training_run_epoch_end(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        """Look for a new value at the end of an epoch.

        Raises:
            UnknownMetricError: There was an evaluation, or there will be none, and nothing reported the metric.
        """
        self._look(trainer)
        self._require_metric(trainer)

    def _require_metric(self, trainer: Any) -> None:
        if evaluates_by_itself(trainer):
            told = bool(reported_by_itself(trainer))
        else:
            told = self._evaluated or trainer._eval_dataloader is None
        if self._values_seen == 0 and told:
            reported = sorted(trainer.run_history.get_metric_names())
            nearest_first = get_close_matches(self.watch_metric, reported, n=len(reported) or 1, cutoff=0.0)
            raise UnknownMetricError(
                f"{self._name} watches {self.watch_metric!r}, but evaluation reported {nearest_first}; "
                "set watch_metric= to one of these"
            )

    def _look(self, trainer: RunningTrainer) -> None:
        values = trainer.run_history.get_metric_values(self.watch_metric)
        if len(values) <= self._values_seen:
            return
        self._values_seen = len(values)
        value = values[-1]
        if not hasattr(value, "__float__"):
            raise ConfigError(
                f"{self._name} watches {self.watch_metric!r}, which is a {type(value).__name__}; watch a single number"
            )
        self.new_value(trainer, float(value))

    @property
    def _name(self) -> str:
        return type(self).__name__.removesuffix("Callback")

    def state_dict(self) -> dict[str, Any]:
        """Return the best value and how many values were seen."""
        return {"best_metric": self.best_metric, "values_seen": self._values_seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the best value of `state`."""
        self.best_metric = state["best_metric"]
        self._values_seen = state["values_seen"]
