"""Reports the norm of the gradient."""

from typing import Any

from treadle.callback import TrainerCallback
from treadle.callbacks.run_stats_monitor import GRADIENT_NORM
from treadle.loop.interfaces import RunningTrainer
from treadle.progress import Cadence


class GradientNormMonitor(TrainerCallback):
    """Puts the norm of the whole gradient, before it is clipped, into the trainer's storage as "gradient_norm".

    Where the trainer clips by norm the number is there already; otherwise it is computed at every update. It
    stays on the device until a log is due.

    Args:
        every: How often to put it: a number of steps.
    """

    reports = (GRADIENT_NORM,)

    def __init__(self, every: int | str | Cadence = 1) -> None:
        self._cadence = Cadence.parse(every, name="GradientNormMonitor: every")
        self._asked_before = False

    def begin_session(self, trainer: RunningTrainer, *, training: bool) -> None:
        """Ask the trainer for the norm, in a run."""
        if training:
            self._asked_before = trainer.track_gradient_norm
            trainer.track_gradient_norm = True

    def on_update_end(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        """Put the norm of this update, if it is due."""
        if trainer.gradient_norm is not None and self._cadence.due_after_step(trainer.progress.step):
            trainer.storage.put_scalar(GRADIENT_NORM, trainer.gradient_norm)

    def on_train_epoch_end(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        """Put the norm of the last update of the epoch, if it is due by epochs."""
        if trainer.gradient_norm is not None and self._cadence.due_after_epoch(trainer.run_history.current_epoch):
            trainer.storage.put_scalar(GRADIENT_NORM, trainer.gradient_norm)

    def on_training_run_end(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        """Let the trainer do without the norm, unless somebody else asked for it."""
        trainer.track_gradient_norm = self._asked_before
