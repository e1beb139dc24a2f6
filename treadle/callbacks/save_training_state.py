"""Saves training states to resume from, at an interval."""

import os
import shutil
from pathlib import Path
from typing import Any

from treadle.callback import TrainerCallback
from treadle.callbacks.placing import output_path
from treadle.errors import ConfigError
from treadle.loop.interfaces import RunningTrainer

USUAL = "training_states"


class SaveTrainingStateCallback(TrainerCallback):
    """Saves everything that `train(resume_from=...)` needs into folders `epoch_N`, `step_N` and `final`.

    A state is written when all that belongs to its step or epoch is done, evaluations and other callbacks
    included: just before the next step or epoch begins, or when the run ends.

    Args:
        save_dir: Where the folders go; by default into `training_states` in the folder of the run, or here if it has
            none.
        save_every_n_epochs: Save when so many epochs are completed.
        save_every_n_steps: Save when so many updates are done, counted over the whole run.
        save_at_end: Whether `final` is saved when the run ends.
        max_checkpoints: How many folders to keep, the oldest go first. `final` is not counted and always stays.
    """

    needs_whole_model = "saves a folder by itself, without the pieces of other processes; use run_dir= and save_every="

    def __init__(
        self,
        save_dir: str | os.PathLike[str] | None = None,
        save_every_n_epochs: int | None = None,
        save_every_n_steps: int | None = None,
        save_at_end: bool = True,
        max_checkpoints: int | None = None,
    ) -> None:
        for name, value in (
            ("save_every_n_epochs", save_every_n_epochs),
            ("save_every_n_steps", save_every_n_steps),
            ("max_checkpoints", max_checkpoints),
        ):
            if value is not None and value < 1:
                raise ConfigError(f"SaveTrainingStateCallback: {name}={value} must be at least 1")
        self._given = save_dir
        self.save_dir = Path(USUAL if save_dir is None else save_dir)
        self.save_every_n_epochs = save_every_n_epochs
        self.save_every_n_steps = save_every_n_steps
        self.save_at_end = save_at_end
        self.max_checkpoints = max_checkpoints
        self._due: list[str] = []
        self._kept: list[str] = []

    def begin_session(self, trainer: RunningTrainer, *, training: bool) -> None:
        """Leave the folders of earlier runs alone."""
        if not training:
            return
        self.save_dir = Path(output_path(self._given, USUAL, trainer))
        self._due, self._kept = [], []

    def on_update_end(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        """Take note if a state is due by steps."""
        step = trainer.progress.step
        if self.save_every_n_steps is not None and step % self.save_every_n_steps == 0:
            self._due.append(f"step_{step}")

    def on_training_run_epoch_end(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        """Take note if a state is due by epochs."""
        epoch = trainer.run_history.current_epoch
        if self.save_every_n_epochs is not None and epoch % self.save_every_n_epochs == 0:
            self._due.append(f"epoch_{epoch}")

    def on_update_start(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        """Save what is due, before the data of the next step is drawn."""
        if self._due:
            self._save_due(trainer)

    def on_train_epoch_start(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        """Save what is due, before the next epoch."""
        self._save_due(trainer)

    def on_training_run_end(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        """Save what is due, and the end of the run."""
        self._save_due(trainer)
        if self.save_at_end:
            trainer.save_training_state(self.save_dir / "final")

    def _save_due(self, trainer: RunningTrainer) -> None:
        due, self._due = self._due, []
        for name in due:
            # Counted before it is written: the state saved must know of its own folder.
            surplus = self._count(name)
            trainer.save_training_state(self.save_dir / name)
            if trainer.processes.is_main:
                for old in surplus:
                    shutil.rmtree(self.save_dir / old, ignore_errors=True)

    def _count(self, name: str) -> list[str]:
        """Take note of a new folder and return those that it makes superfluous."""
        kept = [*(old for old in self._kept if old != name), name]
        cut = 0 if self.max_checkpoints is None else max(0, len(kept) - self.max_checkpoints)
        self._kept = kept[cut:]
        return kept[:cut]

    def state_dict(self) -> dict[str, Any]:
        """Return the names of the folders that are kept."""
        return {"kept": list(self._kept)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the folders of `state`."""
        self._kept = list(state["kept"])
