"""Says in words what a run does: a head, a line for each epoch, its end."""

import textwrap
import time
from typing import TYPE_CHECKING, Any

from treadle.callback import TrainerCallback
from treadle.callbacks.epoch_table import table_of
from treadle.callbacks.run_head import describe_run
from treadle.console.lines import clock, counted, fields, line, number, short
from treadle.loop.interfaces import RunningTrainer
from treadle.result import best_so_far, watched_by
from treadle.runs.place import run_address

if TYPE_CHECKING:
    from treadle.events import RunHistory

WIDTH = 80

REPEATED = ("is_local_process_zero", "is_world_process_zero", "is_distributed", "num_local_update_steps_per_epoch")
"""Settings that only say again, for programs, what others of the table say."""


class UnshownMetrics:
    """Knows which metrics of a history have a value that was not shown yet."""

    def __init__(self) -> None:
        self._shown: dict[str, int] = {}

    def take(self, history: "RunHistory", start: str = "") -> dict[str, Any]:
        """Return the newest value of every metric whose name begins so, if it was not returned before."""
        found = {}
        for name in sorted(history.get_metric_names()):
            count = len(history.get_metric_values(name))
            if name.startswith(start) and count != self._shown.get(name):
                self._shown[name] = count
                found[name] = history.get_latest_metric(name)
        return found


class PrintProgressCallback(TrainerCallback):
    """Prints a head of the run, a line for each epoch with its metrics, and how and where the run ended.

    A line ends with `*best` where the metric that the run is judged by is the best so far: the one that a callback
    watches or that checkpoints are kept by, else the loss of the evaluation.

    Args:
        verbose: Whether every resolved setting is printed as well; in the folder of the run they are in any case.
    """

    def __init__(self, verbose: bool = False) -> None:
        self.verbose = verbose
        self._stopped = False
        self._metrics = UnshownMetrics()
        self._began = self._epoch_began = self._evaluation_began = 0.0

    def begin_session(self, trainer: RunningTrainer, *, training: bool) -> None:
        """Forget how the run before ended, and take its metrics as shown."""
        self._stopped = False
        # Of an epoch that is the user's own loop nobody says when it begins: it begins where the last one ended.
        self._began = self._epoch_began = time.monotonic()
        self._metrics = UnshownMetrics()
        self._metrics.take(trainer.run_history)

    def on_training_run_start(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        """Print the head, and the settings if they are asked for."""
        trainer.print("\n".join(describe_run(trainer)))
        if self.verbose and trainer.run_config is not None:
            settings = trainer.run_config.to_dict()
            trainer.print(settings_table({name: value for name, value in settings.items() if name not in REPEATED}))

    def on_train_epoch_start(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        """Print what was recorded after the line of the last epoch, and begin to take the time of this one."""
        self._print_rest(trainer)
        self._epoch_began = time.monotonic()

    def on_eval_epoch_end(self, trainer: RunningTrainer, is_intermediate: bool = False, **kwargs: Any) -> None:
        """Print the metrics of an evaluation within an epoch."""
        if is_intermediate:
            self._tell(trainer, f"step {trainer.progress.step:,}", "")

    def on_training_run_epoch_end(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        """Print the line of the epoch; it says so if the epoch was left before its data ended."""
        left = f"left at step {trainer.progress.step:,}" if trainer.this_run.epoch_is_cut else ""
        self._tell(trainer, f"epoch {epoch_under_way(trainer)}", clock(time.monotonic() - self._epoch_began), left=left)
        self._epoch_began = time.monotonic()

    def on_stop_training_error(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        """Take note that the run ends before its time; the trainer itself prints why."""
        self._stopped = True

    def on_training_run_end(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        """Print how the run ended, its best value, and where it is kept."""
        self._print_rest(trainer)
        done, how = trainer.progress, "stopped" if self._stopped else "finished"
        spent = clock(time.monotonic() - self._began)
        told = [f"{how} after {counted(done.epoch, 'epoch')}, {counted(done.step, 'step')}, {spent}"]
        watched = watched_by(trainer)
        best = None if watched is None else best_so_far(trainer.run_history, *watched)
        if best is not None:
            told.append(f"best {short(best.name)} {number(best.value)}")
        trainer.print("; ".join([*told, *_folder(trainer)]))

    def on_evaluation_run_start(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        """Begin to take the time of an evaluation by itself."""
        self._evaluation_began = time.monotonic()

    def on_evaluation_run_end(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        """Print what it found."""
        history = trainer.run_history
        results = getattr(history, "results", None)
        found = self._metrics.take(history) if results is None else results()
        for name in getattr(history, "recorded", {}).values():
            self._metrics.take(history, name)
        trainer.print(line("evaluation", clock(time.monotonic() - self._evaluation_began), fields(found)))

    def on_exception(self, trainer: RunningTrainer, exception: BaseException, **kwargs: Any) -> None:
        """Print what ended the run, and where it is kept; a run that was asked to leave has said so already."""
        if trainer.this_run.stop.left:
            return
        told = f"the run ended with {type(exception).__name__} after {counted(trainer.progress.step, 'step')}"
        trainer.print("; ".join([told, *_folder(trainer)]))

    def _tell(self, trainer: RunningTrainer, what: str, spent: str, *, left: str = "") -> None:
        """Print a line of metrics, or hand it to the table that a notebook shows."""
        found = self._metrics.take(trainer.run_history)
        watched = watched_by(trainer)
        best = False
        if watched is not None and watched[0] in found:
            values = trainer.run_history.get_metric_values(watched[0])
            known = best_so_far(trainer.run_history, *watched)
            best = known is not None and known.position == len(values) - 1
        text = line(what, spent, fields(found, best=best), left)
        table = table_of(trainer.callback_handler)
        if table is None:
            trainer.print(text)
        else:
            table.add_row(what, spent, found, best=best)
            trainer.this_run.checkpointer.log(text)

    def _print_rest(self, trainer: RunningTrainer) -> None:
        rest = self._metrics.take(trainer.run_history)
        if rest:
            trainer.print(f"  {fields(rest)}")


def _folder(trainer: RunningTrainer) -> list[str]:
    return [] if trainer.run_dir is None else [f"folder {run_address(trainer.run_dir)}"]


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


def epoch_under_way(trainer: RunningTrainer) -> str:
    """Return the number of the epoch in this run, and of how many; a history may continue that of the run before."""
    total = None if trainer.run_config is None else trainer.run_config.num_epochs
    under_way = trainer.progress.epoch + 1
    return str(under_way) if total is None else f"{under_way:>{len(str(total))}}/{total}"
