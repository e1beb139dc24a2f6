"""Shows the metrics of each epoch."""

from typing import Any

from treadle.callback import TrainerCallback
from treadle.callbacks.print_progress import PrintProgressCallback, UnshownMetrics
from treadle.console.lines import fields
from treadle.loop.interfaces import RunningTrainer


class LogMetricsCallback(TrainerCallback):
    """Hands on what was recorded: metrics named "train..." after training, all others after the evaluation.

    Only metrics with a new value are shown. What is recorded later in an epoch is shown at its end. They are printed
    as a line, unless a `PrintProgressCallback` has them in the line of its epoch. Override `log_metrics` to send them
    elsewhere.
    """

    def __init__(self) -> None:
        self._metrics = UnshownMetrics()

    def begin_session(self, trainer: RunningTrainer, *, training: bool) -> None:
        """Take metrics of earlier runs as known."""
        self._take_stock(trainer)

    def on_evaluation_run_start(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        """Take metrics of the run so far as known, in an evaluation within one."""
        self._take_stock(trainer)

    def on_train_epoch_end(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        """Show the metrics of training."""
        self._log(trainer, "train")

    def on_eval_epoch_end(self, trainer: RunningTrainer, is_intermediate: bool = False, **kwargs: Any) -> None:
        """Show the metrics of the evaluation."""
        self._log(trainer, trainer.run_history.metric_name_prefix)

    def on_training_run_epoch_end(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        """Show what was recorded after the evaluation, or without one."""
        self._log(trainer)

    def log_metrics(self, trainer: RunningTrainer, metrics: dict[str, Any]) -> None:
        """Print `metrics` as a line; override it to send them elsewhere."""
        if not any(isinstance(one, PrintProgressCallback) for one in trainer.callback_handler):
            trainer.print(f"  {fields(metrics)}")

    def _log(self, trainer: RunningTrainer, start: str = "") -> None:
        metrics = self._metrics.take(trainer.run_history, start)
        if metrics:
            self.log_metrics(trainer, metrics)

    def _take_stock(self, trainer: RunningTrainer) -> None:
        self._metrics = UnshownMetrics()
        self._metrics.take(trainer.run_history)
