"""Keeps the best weights of a run."""

import os
from typing import Any

from treadle.callbacks.placing import output_path
from treadle.callbacks.watched_metric import EVALUATION_LOSS, WatchesMetric
from treadle.checkpoint.format.suffixes import file_format
from treadle.loop.interfaces import RunningTrainer

USUAL = "best_model.pt"


class SaveBestModelCallback(WatchesMetric):
    """Saves a checkpoint whenever a metric is better than ever, and loads the best one when the run ends.

    The value is kept in the checkpoint under the metric's own name.

    Args:
        save_path: The file; by default `best_model.pt` in the folder of the run, or here if it has none.
        watch_metric: The metric to watch.
        greater_is_better: Whether a greater value is better.
        reset_on_train: Whether a new run starts without the best value of the one before.
        save_optimizer: Whether the optimizer's state is saved, and loaded at the end.
        save_scheduler: Whether the scheduler's state is saved, and loaded at the end.
        load_saved_checkpoint: Whether the best checkpoint is loaded when the run ends.

    Raises:
        CheckpointError: The name of the file is that of a format which is not written.
    """

    def __init__(
        self,
        save_path: str | os.PathLike[str] | None = None,
        watch_metric: str = EVALUATION_LOSS,
        greater_is_better: bool = False,
        reset_on_train: bool = True,
        save_optimizer: bool = True,
        save_scheduler: bool = True,
        load_saved_checkpoint: bool = True,
    ) -> None:
        super().__init__(watch_metric, greater_is_better=greater_is_better, reset_on_train=reset_on_train)
        self._given = save_path
        file_format(USUAL if save_path is None else save_path)
        self.save_path: str | os.PathLike[str] = USUAL if save_path is None else save_path
        self.save_optimizer = save_optimizer
        self.save_scheduler = save_scheduler
        self.load_saved_checkpoint = load_saved_checkpoint

    def begin_session(self, trainer: RunningTrainer, *, training: bool) -> None:
        """Begin to watch, and find the place of the file."""
        super().begin_session(trainer, training=training)
        if training:
            self.save_path = output_path(self._given, USUAL, trainer)

    def new_value(self, trainer: RunningTrainer, value: float) -> None:
        """Save a checkpoint if `value` is the best so far."""
        if not self.is_better(value):
            return
        self.best_metric = value
        trainer.save_checkpoint(
            self.save_path,
            checkpoint_kwargs={self.watch_metric: value},
            save_optimizer=self.save_optimizer,
            save_scheduler=self.save_scheduler,
        )

    def on_training_run_end(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        """Load the best checkpoint."""
        if self.load_saved_checkpoint and self.best_metric is not None:
            trainer.load_checkpoint(
                self.save_path, load_optimizer=self.save_optimizer, load_scheduler=self.save_scheduler
            )
            best = f"{self.watch_metric} {self.best_metric:.4g}"
            trainer.print(f"The model has the best weights of the run again, with {best}, from {self.save_path}")
