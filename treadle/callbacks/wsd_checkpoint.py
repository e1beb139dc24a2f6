"""Saves the two checkpoints of each period of a warm-up, stable, decay schedule."""

import os
from pathlib import Path
from typing import Any

from treadle.callback import TrainerCallback
from treadle.callbacks.placing import output_path
from treadle.errors import CheckpointError, ConfigError
from treadle.loop.interfaces import RunningTrainer
from treadle.schedules import WSDLrScheduler

USUAL = "checkpoints"
IN_A_RUN = "wsd_checkpoints"
"""In the folder of a run, the other name is that of the run's own checkpoints."""


class WSDCheckpointCallback(TrainerCallback):
    """Saves a run under a `WSDLrScheduler` where each decay begins, to resume from, and where it ends, to use.

    `checkpoint_<step>_pre_decay` is a folder with the training state before the decay;
    `checkpoint_<step>_post_decay.pt` is a file with the weights after it. To train longer, start from a folder
    with a schedule that was built with `is_continuation_from_checkpoint=True`: the run continues from its step.

    Args:
        save_dir: Where they go; by default into `wsd_checkpoints` in the folder of the run, or `checkpoints` here if it
            has none.
        save_optimizer: Whether the file after a decay holds the optimizer's state.
        save_scheduler: Whether the file after a decay holds the scheduler's state.
        initial_checkpoint: What to start from: a folder with a training state, or a file with weights.
    """

    def __init__(
        self,
        save_dir: str | os.PathLike[str] | None = None,
        save_optimizer: bool = True,
        save_scheduler: bool = True,
        initial_checkpoint: str | os.PathLike[str] | None = None,
    ) -> None:
        self._given = save_dir
        self.save_dir = Path(USUAL if save_dir is None else save_dir)
        self.save_optimizer = save_optimizer
        self.save_scheduler = save_scheduler
        self.initial_checkpoint = None if initial_checkpoint is None else Path(initial_checkpoint)
        self._due: list[Path] = []

    def begin_session(self, trainer: RunningTrainer, *, training: bool) -> None:
        """Find the place of the checkpoints, in a run."""
        if training:
            self._due = []
            self.save_dir = Path(output_path(self._given, USUAL if trainer.run_dir is None else IN_A_RUN, trainer))

    def on_training_run_start(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        """Load the checkpoint to start from.

        Raises:
            ConfigError: The run has another scheduler.
            CheckpointError: There is nothing at the path to start from.
        """
        self._schedule(trainer)
        start = self.initial_checkpoint
        if start is None:
            return
        if start.is_dir():
            trainer.load_training_state(start)
        elif start.is_file():
            trainer.load_checkpoint(start)
        else:
            raise CheckpointError(f"WSDCheckpointCallback: initial_checkpoint={str(start)!r} is no folder and no file")

    def on_update_end(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        """Save the weights where a decay ends; take note of the state where one begins."""
        schedule = self._schedule(trainer)
        done, step = schedule.get_current_step(), trainer.progress.step
        for period in schedule.get_decay_info():
            if done == period["period_end"]:
                trainer.save_checkpoint(
                    self.save_dir / f"checkpoint_{step}_post_decay.pt",
                    save_optimizer=self.save_optimizer,
                    save_scheduler=self.save_scheduler,
                )
            elif done == period["pre_decay_step"]:
                self._due.append(self.save_dir / f"checkpoint_{step}_pre_decay")

    def on_update_start(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        """Save the state before the first step of a decay, when all of the step before is done."""
        if self._due:
            trainer.save_training_state(self._due.pop())

    @staticmethod
    def _schedule(trainer: RunningTrainer) -> WSDLrScheduler:
        if not isinstance(trainer.scheduler, WSDLrScheduler):
            present = "none" if trainer.scheduler is None else f"a {type(trainer.scheduler).__name__}"
            raise ConfigError(
                f"WSDCheckpointCallback needs a WSDLrScheduler, but the run has {present}; "
                "pass create_scheduler_fn=WSDLrScheduler.create_scheduler_fn()"
            )
        return trainer.scheduler
