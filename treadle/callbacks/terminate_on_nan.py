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

    def on_eval_epoch_end(self, trainer: "Trainer", is_intermediate: bool = False, **kwargs: Any) -> None:
        """Raise if the loss of the evaluation was not finite.

        Raises:
            NonFiniteError: It was not.
        """
        history = trainer.run_history
        name = history.metric_name_prefix + ("eval_loss_epoch" if history.in_training else "evaluation_loss")
        if name not in history.get_metric_names():
            return  # an evaluation of the user's own, which reports something else
        value = history.get_latest_metric(name)
        if isinstance(value, float) and not math.isfinite(value):
            raise NonFiniteError(f"{name} is {value} after step {trainer.progress.step}; {REMEDY}")
