"""Ends a run whose evaluation became nan or infinite."""

import math
from typing import Any

from treadle.callback import TrainerCallback
from treadle.callbacks.watched_metric import evaluates_by_itself, reported_by_itself
from treadle.errors import NonFiniteError
from treadle.loop.interfaces import RunningTrainer
from treadle.loop.nonfinite import REMEDY


class TerminateOnNaNCallback(TrainerCallback):
    """Raises `NonFiniteError` after an evaluation whose loss is nan or infinite, or any number of other evaluations.

    The losses of training are the trainer's own concern, by its `on_nonfinite`: it looks at them when a log is
    due, when they are on the host anyway, and names the step where it began.
    """

    def on_eval_epoch_end(self, trainer: RunningTrainer, is_intermediate: bool = False, **kwargs: Any) -> None:
        """Raise if the loss of the evaluation was not finite, or anything that an evaluation of a door reported.

        Raises:
            NonFiniteError: It was not.
        """
        history = trainer.run_history
        if evaluates_by_itself(trainer):
            self._check(trainer, *reported_by_itself(trainer))
            return
        name = history.metric_name_prefix + ("eval_loss_epoch" if history.in_training else "evaluation_loss")
        if name in history.get_metric_names():  # an evaluation of the user's own may report something else
            self._check(trainer, name)

    def on_training_run_epoch_end(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        """Raise if anything is not finite that a door has reported of the epoch just now."""
        if evaluates_by_itself(trainer):
            self._check(trainer, *reported_by_itself(trainer))

    @staticmethod
    def _check(trainer: Any, *names: str) -> None:
        for name in names:
            value = trainer.run_history.get_latest_metric(name)
            if isinstance(value, float) and not math.isfinite(value):
                raise NonFiniteError(f"{name} is {value} after step {trainer.progress.step}; check its data; {REMEDY}")
