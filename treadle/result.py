"""What a training run hands back."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.loop.interfaces import RunLike, RunningTrainer

if TYPE_CHECKING:
    from treadle.events import RunHistory

EVALUATION_LOSS, TRAINING_LOSS = "eval_loss_epoch", "train_loss_epoch"


@dataclass(frozen=True)
class BestMetric:
    """The best value of the metric that a run watched."""

    name: str
    value: float
    position: int
    """How many values came before it: 0 is the first."""


@dataclass(frozen=True)
class TrainResult:
    """The outcome of `Trainer.train`.

    Attributes:
        history: Every metric of the run history, by name.
        best: The best value of the metric watched, None if nothing was reported.
        stop_reason: Why the run ended, in words.
        epochs: Epochs completed.
        steps: Updates attempted.
        run_dir: The folder of the run, if it has one.
        unsaved: Why the end of the run is not in its folder, where failing checkpoints stop no run; empty if it is.
    """

    history: dict[str, list[Any]]
    best: BestMetric | None
    stop_reason: str
    epochs: int
    steps: int
    run_dir: Path | None = None
    unsaved: str = ""

    @property
    def best_metric(self) -> float | None:
        """The value of `best`."""
        return None if self.best is None else self.best.value

    def _repr_html_(self) -> str:
        """Show the history as a table in a notebook."""
        length = max((len(values) for values in self.history.values()), default=0)
        names = sorted(self.history)
        rows = [[row + 1, *(_at(self.history[name], row) for name in names)] for row in range(length)]
        from treadle.runs.html_table import html_table

        return html_table(["epoch", *names], rows, self.stop_reason)


def _at(values: list[Any], row: int) -> Any:
    return values[row] if row < len(values) else None


def find_best(name: str, values: list[Any], *, greater_is_better: bool) -> BestMetric | None:
    """Return the best of `values`, the first of equals; nan never wins.

    >>> find_best("accuracy", [0.5, float("nan"), 0.75, 0.75], greater_is_better=True)
    BestMetric(name='accuracy', value=0.75, position=2)
    """
    numbers = [(value, place) for place, value in enumerate(values) if isinstance(value, (int, float))]
    finite = [(value, place) for value, place in numbers if not math.isnan(value)]
    if not finite:
        return None
    sign = -1 if greater_is_better else 1
    value, place = min(finite, key=lambda pair: (sign * pair[0], pair[1]))
    return BestMetric(name, float(value), place)


def watched_by(trainer: RunningTrainer) -> tuple[str, bool] | None:
    """Return the metric that a run is judged by, and whether a greater value of it is better.

    It is the one that a callback watches, or that checkpoints are kept by, else the loss of the evaluation; None where
    nothing of these is there.
    """
    watching = next((one for one in trainer.callback_handler if hasattr(one, "watch_metric")), None)
    if watching is not None:
        return watching.watch_metric, watching.greater_is_better
    kept = trainer.this_run.spec.checkpoints
    if kept.best is not None and trainer.run_dir is not None:
        return kept.best, kept.keeps_greatest
    return (EVALUATION_LOSS, False) if EVALUATION_LOSS in trainer.run_history.get_metric_names() else None


def best_so_far(history: "RunHistory", name: str, greater_is_better: bool) -> BestMetric | None:
    """Return the best value of a metric in a history; None if it has none."""
    return find_best(name, history.get_metric_values(name), greater_is_better=greater_is_better)


def build_result(run: RunLike) -> TrainResult:
    """Return how a run went."""
    trainer, history = run.trainer, run.trainer.run_history
    return TrainResult(
        history={name: history.get_metric_values(name) for name in sorted(history.get_metric_names())},
        best=best_so_far(history, *(watched_by(trainer) or (TRAINING_LOSS, False))),
        stop_reason=run.stop.reason,
        epochs=run.progress.epoch,
        steps=run.progress.step,
        run_dir=run.spec.run_dir,
        unsaved=run.checkpointer.unsaved,
    )
