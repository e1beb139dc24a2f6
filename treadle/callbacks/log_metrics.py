"""Shows the metrics of each epoch."""

from typing import TYPE_CHECKING, Any

from treadle.callback import TrainerCallback

if TYPE_CHECKING:
    from treadle.trainer import Trainer


class LogMetricsCallback(TrainerCallback):
    """Prints what was recorded: metrics named "train..." after training, all others after the evaluation.

    Only metrics with a new value are shown. What is recorded later in an epoch is shown at its end. Override
    `log_metrics` to send them elsewhere.
    """

    def __init__(self) -> None:
        self._shown: dict[str, int] = {}

    def begin_session(self, trainer: "Trainer", *, training: bool) -> None:
        """Take metrics of earlier runs as known."""
        self._take_stock(trainer)

    def on_evaluation_run_start(self, trainer: "Trainer", **kwargs: Any) -> None:
        """Take metrics of the run so far as known, in an evaluation within one."""
        self._take_stock(trainer)

    def on_train_epoch_end(self, trainer: "Trainer", **kwargs: Any) -> None:
        """Show the metrics of training."""
        self._log(trainer, self._new_metrics(trainer, "train"))

    def on_eval_epoch_end(self, trainer: "Trainer", is_intermediate: bool = False, **kwargs: Any) -> None:
        """Show the metrics of the evaluation."""
        self._log(trainer, self._new_metrics(trainer, trainer.run_history.metric_name_prefix))

    def on_training_run_epoch_end(self, trainer: "Trainer", **kwargs: Any) -> None:
        """Show what was recorded after the evaluation, or without one."""
        self._log(trainer, self._new_metrics(trainer))

    def log_metrics(self, trainer: "Trainer", metrics: dict[str, Any]) -> None:
        """Print `metrics` as a table; override it to send them elsewhere."""
        width = max(len(name) for name in metrics)
        trainer.print("\n".join(f"  {name:<{width}}  {_shown_as(value)}" for name, value in metrics.items()))

    def _log(self, trainer: "Trainer", metrics: dict[str, Any]) -> None:
        if metrics:
            self.log_metrics(trainer, metrics)

    def _take_stock(self, trainer: "Trainer") -> None:
        self._shown = {}
        self._new_metrics(trainer)

    def _new_metrics(self, trainer: "Trainer", start: str = "") -> dict[str, Any]:
        """Return the newest value of every metric whose name begins so, if it was not returned before."""
        history, found = trainer.run_history, {}
        for name in sorted(history.get_metric_names()):
            count = len(history.get_metric_values(name))
            if name.startswith(start) and count != self._shown.get(name):
                self._shown[name] = count
                found[name] = history.get_latest_metric(name)
        return found


def _shown_as(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
