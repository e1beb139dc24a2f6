"""Ends a run whose loss became nan or infinite."""

import math
from typing import TYPE_CHECKING, Any

from treadle.callback import TrainerCallback
from treadle.errors import NonFiniteError

if TYPE_CHECKING:
    from treadle.trainer import Trainer

REMEDY = "lower the learning rate or set clip_norm"


class TerminateOnNaNCallback(TrainerCallback):
    """Raises `NonFiniteError` once a loss is nan or infinite.

    Training losses are looked at when a log is due, when they are on the host anyway, so that no step waits for
    the device; the message still names the step where it began. Evaluations are looked at when they end.
    """

    def __init__(self) -> None:
        self._evaluation_loss = "eval_loss_epoch"

    def on_training_run_start(self, trainer: "Trainer", **kwargs: Any) -> None:
        """Take evaluations from now on as part of training."""
        self._evaluation_loss = "eval_loss_epoch"

    def on_evaluation_run_start(self, trainer: "Trainer", **kwargs: Any) -> None:
        """Take the evaluation that follows as one by itself."""
        self._evaluation_loss = "evaluation_loss"

    def on_log(
        self,
        trainer: "Trainer",
        scalars: Any = None,
        nonfinite: tuple[int, float, float | None] | None = None,
        **kwargs: Any,
    ) -> None:
        """Raise if a loss since the last log was not finite.

        Raises:
            NonFiniteError: It was.
        """
        if nonfinite is not None:
            step, value, before = nonfinite
            raise NonFiniteError(f"loss is {value} at step {step}{_history(trainer, step, before)}; {REMEDY}")

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


def _history(trainer: "Trainer", step: int, before: float | None) -> str:
    """Say what the loss was before; with accumulation that is a micro-batch of the same step, or of the last."""
    if before is None:
        return ""
    alone = trainer.run_config is None or trainer.run_config.gradient_accumulation_steps == 1
    return f" ({before:.3g} at step {step - 1})" if alone else f" ({before:.3g} one micro-batch before)"
