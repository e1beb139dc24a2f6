"""Callbacks that can do nothing in this door, each with the reason and what to use instead."""

from typing import Any

from treadle.callbacks import (
    LimitEvalStepsCallback,
    SaveTrainingStateCallback,
    StepBasedEvaluationCallback,
    WSDCheckpointCallback,
)
from treadle.errors import ConfigError

REFUSED: dict[type, str] = {
    LimitEvalStepsCallback: "evaluations are those of EvalHook here; set train.evaluation.eval_iter",
    StepBasedEvaluationCallback: "evaluations are those of EvalHook here; set train.evaluation.eval_period",
    SaveTrainingStateCallback: (
        "what it saves is for train(resume_from=...), which this door has not; set train.checkpointer.period, and go "
        "on with train.resume"
    ),
    WSDCheckpointCallback: (
        "its folders are for train(resume_from=...), which this door has not; use PeriodicCheckpointer, and "
        "trainer.checkpointer.save(name) where a decay begins"
    ),
}
"""Each class, which its subclasses share, with the reason."""


def refuse_callback(given: Any) -> None:
    """Refuse a callback, or a class of them, that would have no effect in a run of this door.

    Raises:
        ConfigError: It would not; the message has the reason.
    """
    kind = given if isinstance(given, type) else type(given)
    for refused, reason in REFUSED.items():
        if issubclass(kind, refused):
            raise ConfigError(f"{kind.__name__} does nothing in a run of treadle.engine: {reason}")
