"""Ends a run whose evaluation became nan or infinite."""

import math
from typing import TYPE_CHECKING, Any

from treadle.callback import TrainerCallback
from treadle.errors import NonFiniteError
from treadle.nonfinite import REMEDY

if TYPE_CHECKING:
    from treadle.trainer import Trainer


class TerminateOnNaNCallback(TrainerCallback):
    """Raises `NonFiniteError` after an evaluation whose loss is nan or infinite.

    The losses of training are the trainer's own concern, by its `on_nonfinite`: it looks at them when a log is
    due, when they are on the host anyway, and names the step where it began.
    """

    def __init__(self) -> None:
        self._evaluation_loss = "eval_loss_epoch"

    def on_training_run_start(self, trainer: "Trainer", **kwargs: Any) -> None:
        """Take evaluations from now on as part of training."""
        self._evaluation_loss = "eval_loss_epoch"

    def on_evaluation_run_start(self, trainer: "Trainer", **kwargs: Any) -> None:
        """Take the evaluation that follows as one by itself."""
        self._evaluation_loss = "evaluation_loss"

    def on_eval_epoch_end(self, trainer: "Trainer", is_intermediate: bool = False, **kwargs: Any) -> None:
        """Raise if the loss of the evaluation was not finite.

        Raises:
            NonFiniteError: It was not.
        """
        history = trainer.run_history
        name = history.metric_name_prefix + self._evaluation_loss
        if name not in history.get_metric_names():
            return  # an evaluation of the user's own, which reports something else
        value = history.get_latest_metric(name)
        if isinstance(value, float) and not math.isfinite(value):
            raise NonFiniteError(f"{name} is {value} after step {trainer.progress.step}; {REMEDY}")
