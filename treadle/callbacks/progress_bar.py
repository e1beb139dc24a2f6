"""Shows how far an epoch or an evaluation is."""

import logging
import os
import threading
import time
from typing import Any

from torch import Tensor

from treadle.callback import TrainerCallback
from treadle.callbacks.epoch_table import EpochTable
from treadle.callbacks.print_progress import PrintProgressCallback, epoch_under_way
from treadle.callbacks.progress_display import Activity, BarDisplay, Display, NotebookDisplay, make_display
from treadle.console.lines import number
from treadle.loop.interfaces import RunningTrainer

logger = logging.getLogger(__name__)

_drawing = threading.Lock()
"""Held while something is drawn, and while this process forks: a worker must not inherit a console in use."""
_guarding_forks: list[bool] = []


class ProgressBarCallback(TrainerCallback):
    """Shows the epoch, the loss, the learning rate, samples per second and the time left.

    A thread of its own looks at the trainer's counters a few times a second, so that a step costs nothing. Loss
    and rate are those of the latest log. Where there is no terminal it prints a line now and then instead. A bar stays
    on the screen when its epoch is over, unless a line says how the epoch went.

    Args:
        refresh_every: Seconds between two drawings of a bar.
        line_every: Seconds between two lines, where no bar can be drawn.
        stays: Whether the bar of an epoch stays; None if no `PrintProgressCallback` says how the epoch went.
    """

    def __init__(self, refresh_every: float = 0.25, line_every: float = 60.0, stays: bool | None = None) -> None:
        self.refresh_every, self.stays = refresh_every, stays
        self.line_every = line_every
        self._display: Display | None = None
        self._thread: threading.Thread | None = None
        self._over = threading.Event()
        self._training: Activity | None = None
        self._evaluating: Activity | None = None
        self._notes: dict[str, str] = {}

    @property
    def table(self) -> EpochTable | None:
        """The table of epochs that a notebook shows; None where there is none."""
        return self._display.table if isinstance(self._display, NotebookDisplay) else None

    def begin_session(self, trainer: RunningTrainer, *, training: bool) -> None:
        """Start to look."""
        self._start(trainer)

    def on_train_epoch_start(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        """Show the epoch."""
        self._training = self._begin(_training(trainer, self._notes))

    def on_train_epoch_end(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        """Leave the epoch as it is shown."""
        self._finish(self._training)

    def on_eval_epoch_start(self, trainer: RunningTrainer, is_intermediate: bool = False, **kwargs: Any) -> None:
        """Show the evaluation, below the epoch if it is in the middle of one."""
        self._evaluating = self._begin(_evaluating(trainer))

    def on_eval_epoch_end(self, trainer: RunningTrainer, is_intermediate: bool = False, **kwargs: Any) -> None:
        """Leave the evaluation as it is shown."""
        self._finish(self._evaluating)

    def on_log(self, trainer: RunningTrainer, scalars: Any = None, **kwargs: Any) -> None:
        """Take note of the loss and the learning rate."""
        if scalars and "train_loss" in scalars:
            self._notes["loss"] = number(float(scalars["train_loss"]))
        rates = [group["lr"] for optimizer in trainer.optimizers().values() for group in optimizer.param_groups]
        if rates and not (isinstance(rates[0], Tensor) and rates[0].is_cuda):
            self._notes["lr"] = f"{float(rates[0]):.3g}"

    def on_stop_training_error(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        """Stop to look; why the run stops stands there already, and no bar is drawn below it."""
        self.close(wipe=True)

    def on_training_run_end(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        """Stop to look."""
        self.close()

    def on_evaluation_run_end(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        """Stop to look."""
        self.close()

    def on_exception(self, trainer: RunningTrainer, exception: BaseException, **kwargs: Any) -> None:
        """Give the terminal back before the error is shown; no bar is drawn below what was said of it."""
        self.close(wipe=True)

    def close(self, *, wipe: bool = False) -> None:
        """End the thread and leave the terminal as it was.

        Args:
            wipe: Whether bars that are on the screen are taken away.
        """
        self._over.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        with _drawing:
            display, self._display = self._display, None
            if display is not None:
                display.close(wipe=wipe)
        self._training = self._evaluating = None

    def _start(self, trainer: RunningTrainer) -> None:
        self.close()
        if not trainer.processes.is_local_main:
            return
        _guard_forks()
        self._notes, self._over = {}, threading.Event()
        told = any(isinstance(one, PrintProgressCallback) for one in trainer.callback_handler)
        self._display = make_display(trainer.print, told=told if self.stays is None else not self.stays)
        seconds = self.refresh_every if isinstance(self._display, BarDisplay) else self.line_every
        arguments = (self._display, self._over, seconds)
        self._thread = threading.Thread(target=_keep_drawing, args=arguments, name="treadle-progress", daemon=True)
        self._thread.start()

    def _begin(self, activity: Activity) -> Activity | None:
        with _drawing:
            if self._display is None:
                return None
            self._display.begin(activity)
            return activity

    def _finish(self, activity: Activity | None) -> None:
        with _drawing:
            if self._display is not None and activity is not None:
                self._display.finish(activity)


def _keep_drawing(display: Display, over: threading.Event, seconds: float) -> None:
    while not over.wait(seconds):
        try:
            with _drawing:
                display.draw(time.monotonic())
        except Exception:  # nothing that is only shown may end a run
            logger.exception("the progress cannot be shown any more; the run continues without it")
            return


def _guard_forks() -> None:
    if not _guarding_forks and hasattr(os, "register_at_fork"):
        _guarding_forks.append(True)
        os.register_at_fork(before=_drawing.acquire, after_in_parent=_drawing.release, after_in_child=_drawing.release)


def _training(trainer: RunningTrainer, notes: dict[str, str]) -> Activity:
    progress, config = trainer.progress, trainer.run_config
    known = [] if config is None else [config.num_local_update_steps_per_epoch, config.max_num_train_steps]
    per_epoch, limit = known or (None, None)
    left = None if limit is None else limit - (progress.step - progress.epoch_step)
    total = min((count for count in (per_epoch, left) if count is not None), default=None)
    return Activity(
        f"epoch {epoch_under_way(trainer)}",
        position=lambda: progress.epoch_step,
        total=lambda: total,
        samples=lambda: progress.samples * trainer.processes.size,
        notes=notes,
    )


def _evaluating(trainer: RunningTrainer) -> Activity:
    stream = trainer._eval_dataloader
    return Activity(
        "evaluation",
        position=lambda: 0 if stream is None else stream.drawn,
        total=lambda: None if stream is None else stream.length,
    )
