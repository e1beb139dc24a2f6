"""Ends a run that no longer gets better."""

from typing import Any

from treadle.callbacks.watched_metric import EVALUATION_LOSS, WatchesMetric
from treadle.errors import ConfigError, StopTrainingError
from treadle.loop.interfaces import RunningTrainer


class EarlyStoppingCallback(WatchesMetric):
    """Stops the run when a metric has not improved enough for some evaluations in a row.

    Args:
        early_stopping_patience: How many values without improvement end the run.
        early_stopping_threshold: A value counts as an improvement if it is better than the best by more than this.
        watch_metric: The metric to watch.
        greater_is_better: Whether a greater value is better.
        reset_on_train: Whether a new run starts without the best value of the one before.

    Attributes:
        early_stopping_counter: Values without improvement so far.
    """

    def __init__(
        self,
        early_stopping_patience: int = 1,
        early_stopping_threshold: float = 0.01,
        watch_metric: str = EVALUATION_LOSS,
        greater_is_better: bool = False,
        reset_on_train: bool = True,
    ) -> None:
        super().__init__(watch_metric, greater_is_better=greater_is_better, reset_on_train=reset_on_train)
        if early_stopping_patience < 1:
            raise ConfigError(f"early_stopping_patience={early_stopping_patience} must be at least 1")
        if not early_stopping_threshold >= 0:
            raise ConfigError(f"early_stopping_threshold={early_stopping_threshold} must be 0 or more")
        self.early_stopping_patience = early_stopping_patience
        self.early_stopping_threshold = early_stopping_threshold
        self.early_stopping_counter = 0

    def reset(self) -> None:
        """Forget the best value and the count."""
        super().reset()
        self.early_stopping_counter = 0

    def new_value(self, trainer: RunningTrainer, value: float) -> None:
        """Count a value without improvement.

        Raises:
            StopTrainingError: There were as many in a row as patience allows.
        """
        if self.early_stopping_counter >= self.early_stopping_patience:
            # It has stopped the run before, which was then told to continue.
            self.early_stopping_counter = 0
        if self.is_better(value, by_more_than=self.early_stopping_threshold):
            self.best_metric = value
            self.early_stopping_counter = 0
            return
        self.early_stopping_counter += 1
        if self.early_stopping_counter >= self.early_stopping_patience:
            raise StopTrainingError(self._reason(value))

    def _reason(self, value: float) -> str:
        best = "none yet" if self.best_metric is None else f"{self.best_metric:.4g}"
        return (
            f"{self.watch_metric} did not improve by more than {self.early_stopping_threshold:g} "
            f"in {self.early_stopping_counter} evaluation{'' if self.early_stopping_counter == 1 else 's'} "
            f"(best {best}, now {value:.4g})"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the best value and the count."""
        return {**super().state_dict(), "counter": self.early_stopping_counter}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the count of `state`."""
        super().load_state_dict(state)
        self.early_stopping_counter = state["counter"]
