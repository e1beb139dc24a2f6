"""Evaluates within epochs."""

from typing import Any

from treadle.callback import TrainerCallback
from treadle.errors import ConfigError
from treadle.loop.interfaces import RunningTrainer


class StepBasedEvaluationCallback(TrainerCallback):
    """Evaluates every so many steps of the run, besides the evaluations that the run makes anyway.

    Args:
        eval_every_n_steps: The number of updates between two evaluations, counted over the whole run.
    """

    def __init__(self, eval_every_n_steps: int) -> None:
        if eval_every_n_steps < 1:
            raise ConfigError(
                f"StepBasedEvaluationCallback: eval_every_n_steps={eval_every_n_steps} must be at least 1"
            )
        self.eval_every_n_steps = eval_every_n_steps

    def begin_session(self, trainer: RunningTrainer, *, training: bool) -> None:
        """Make sure that a run has something to evaluate on.

        Raises:
            ConfigError: There is not.
        """
        if training and trainer._eval_dataloader is None:
            raise ConfigError("StepBasedEvaluationCallback has nothing to evaluate on; pass eval_dataset= to train()")

    def on_update_end(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        """Evaluate if it is due."""
        if trainer.progress.step % self.eval_every_n_steps == 0:
            trainer.parallel.share_buffers(trainer.model)
            trainer._run_eval_epoch(trainer._eval_dataloader, is_intermediate=True)
