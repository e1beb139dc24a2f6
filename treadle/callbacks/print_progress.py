"""Says in words what a run does: its settings, its epochs, its end."""

import textwrap
from typing import TYPE_CHECKING, Any

from treadle.callback import TrainerCallback
from treadle.runs.place import run_address

if TYPE_CHECKING:
    from treadle.trainer import Trainer

WIDTH = 80

REPEATED = ("is_local_process_zero", "is_world_process_zero", "is_distributed", "num_local_update_steps_per_epoch")
"""Settings that only say again, for programs, what others of the table say."""


class PrintProgressCallback(TrainerCallback):
    """Prints every resolved setting once, a line for each epoch, and how and where the run ended."""

    def __init__(self) -> None:
        self._stopped = False

    def begin_session(self, trainer: "Trainer", *, training: bool) -> None:
        """Forget how the run before ended."""
        self._stopped = False

    def on_training_run_start(self, trainer: "Trainer", **kwargs: Any) -> None:
        """Print the settings."""
        trainer.print("Starting training run")
        self._print_settings(trainer)

    def on_train_epoch_start(self, trainer: "Trainer", **kwargs: Any) -> None:
        """Say which epoch begins."""
        trainer.print(f"Starting epoch {epoch_under_way(trainer)}")

    def on_training_run_epoch_end(self, trainer: "Trainer", **kwargs: Any) -> None:
        """Say which epoch is done, or was left before its data ended."""
        if trainer.this_run.epoch_is_cut:
            trainer.print(f"Left epoch {epoch_under_way(trainer)} at step {trainer.progress.step}, the last one")
        else:
            trainer.print(f"Finished epoch {epoch_under_way(trainer)}")

    def on_stop_training_error(self, trainer: "Trainer", **kwargs: Any) -> None:
        """Take note that the run ends before its time; the trainer itself prints why."""
        self._stopped = True

    def on_training_run_end(self, trainer: "Trainer", **kwargs: Any) -> None:
        """Say how the run ended, and where it is kept."""
        how, done = "Stopped" if self._stopped else "Finished", trainer.progress
        trainer.print(f"{how} training run after {_counted(done.epoch, 'epoch')} and {_counted(done.step, 'step')}")
        self._print_folder(trainer)

    def on_evaluation_run_start(self, trainer: "Trainer", **kwargs: Any) -> None:
        """Say that an evaluation by itself begins."""
        trainer.print("Starting evaluation run")

    def on_evaluation_run_end(self, trainer: "Trainer", **kwargs: Any) -> None:
        """Say that it is done."""
        trainer.print("Finished evaluation run")

    def on_exception(self, trainer: "Trainer", exception: BaseException, **kwargs: Any) -> None:
        """Say what ended the run, and where it is kept."""
        trainer.print(f"The run ended with {type(exception).__name__} after {_counted(trainer.progress.step, 'step')}")
        self._print_folder(trainer)

    @staticmethod
    def _print_settings(trainer: "Trainer") -> None:
        if trainer.run_config is not None:
            settings = trainer.run_config.to_dict()
            trainer.print(settings_table({name: value for name, value in settings.items() if name not in REPEATED}))

    @staticmethod
    def _print_folder(trainer: "Trainer") -> None:
        if trainer.run_dir is not None:
            trainer.print(f"The run is in {run_address(trainer.run_dir)}")


def settings_table(settings: dict[str, Any], width: int = WIDTH) -> str:
    """Return `settings` as two columns no wider than `width`, without those that are not set.

    >>> print(settings_table({"num_epochs": 3, "clip_norm": None, "device": "cpu"}))
      num_epochs  3
      device      cpu
    """
    shown = {name: _shown_as(value) for name, value in settings.items() if value not in (None, "", {})}
    column = max(map(len, shown), default=0) + 4
    lines: list[str] = []
    for name, value in shown.items():
        first = f"  {name}".ljust(column)
        lines += textwrap.wrap(value, width, initial_indent=first, subsequent_indent=" " * column) or [first]
    return "\n".join(lines)


def _shown_as(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={entry}" for key, entry in value.items())
    return str(value)


def epoch_under_way(trainer: "Trainer") -> str:
    """Return the number of the epoch in this run, and of how many; a history may go on from the run before."""
    total = None if trainer.run_config is None else trainer.run_config.num_epochs
    return f"{trainer.progress.epoch + 1}" + ("" if total is None else f"/{total}")


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")
