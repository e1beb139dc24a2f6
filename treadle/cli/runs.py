"""`treadle runs`: the runs in a folder, and how they are doing."""

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from treadle.cli._errors import report_errors
from treadle.console.metric_names import TRAINING_LOSSES, find_name
from treadle.errors import ConfigError
from treadle.files.bounded_io import printable
from treadle.runs.metric_rows import MetricLines, is_number
from treadle.runs.place import require_folder
from treadle.runs.reader import (
    UNREADABLE,
    find_runs,
    newest_checkpoint,
    planned_steps,
    read_any_run,
    read_json,
    watched_metric,
)

# What the folder of a run tells, read without torch


FALLBACK_METRIC = ("eval_loss_epoch", "min")
"""What is best at where nobody says."""


@dataclass(frozen=True)
class RunSummary:
    """A run in a list.

    Attributes:
        name: Its folder, from the folder that is listed.
        state: What it is doing, or how it ended.
        step: The last step it reported or saved; None if there is none.
        limit: How many steps it is to make; None if that is not known.
        loss: The last loss it reported.
        best_metric: What the best checkpoint is best at.
        best: The best value of it.
        age: Seconds since something was written.
        size: The bytes of all its files.
        problems: What in its folder cannot be used, in words.
    """

    name: str
    state: str
    step: int | None
    limit: int | None
    loss: float | None
    best_metric: str | None
    best: float | None
    age: float
    size: int
    problems: tuple[str, ...] = ()


def summarize_run(run: Path, folder: Path) -> RunSummary:
    """Return what the folder of a run tells; what cannot be read is left out."""
    name = str(run.relative_to(folder)) if run != folder else run.name or str(run)
    try:
        return _facts(run, name)
    except Exception as error:  # of many runs, one that nobody has thought of must not hide the others
        problem = f"{type(error).__name__}: {error}"
        return RunSummary(name, UNREADABLE, None, None, None, None, None, age=0.0, size=0, problems=(problem,))


def _facts(run: Path, name: str) -> RunSummary:
    found = read_any_run(run, name)
    manifest = read_json(newest_checkpoint(run) / "manifest.json")
    metric, mode = watched_metric(found) or FALLBACK_METRIC
    told = _Told(metric, max if mode == "max" else min)
    lines = MetricLines(run / "metrics.jsonl")
    for rows in lines.read(unfinished=True):
        told.add(rows)
    saved_at: Any = manifest.get("step")
    beaten: Any = None if found.heartbeat is None else found.heartbeat.step
    steps = [int(step) for step in (saved_at, told.step, beaten) if is_number(step)]
    files = list(_files(run))
    return RunSummary(
        name=name,
        state=found.state,
        step=max(steps, default=None),
        limit=planned_steps(manifest),
        loss=told.loss,
        best_metric=None if told.best is None else metric,
        best=told.best,
        age=max(0.0, time.time() - max((file.st_mtime for file in files), default=time.time())),
        size=sum(file.st_size for file in files),
        problems=(*found.problems, *lines.told()),
    )


class _Told:
    """What the lines of a run's metrics told last, and told best; none of them is kept."""

    def __init__(self, metric: str, better: Callable[[float, float], float]) -> None:
        self._metric, self._better = metric, better
        self.step: Any = None
        self.loss: float | None = None
        self.best: float | None = None

    def add(self, rows: list[dict[str, Any]]) -> None:
        """Take in the next lines."""
        self.step = rows[-1].get("step", self.step)
        self.loss = next((loss for row in reversed(rows) if (loss := _loss(row)) is not None), self.loss)
        values = [row[name] for row in rows if is_number(row.get(name := find_name(self._metric, row)))]
        for value in values:
            self.best = value if self.best is None else self._better(self.best, value)


def _loss(line: dict[str, Any]) -> float | None:
    value = next((line[name] for name in TRAINING_LOSSES if name in line), None)
    # What is no number in JSON is there as a word: "nan".
    return float(value) if isinstance(value, (int, float)) or value in ("nan", "inf", "-inf") else None


def _files(run: Path) -> Iterator[os.stat_result]:
    for path in run.rglob("*"):
        with suppress(OSError):  # a run that is under way writes and removes files
            if path.is_file():
                yield path.stat()


COLOURS = {"running": "green", "finished": "blue", "failed": "red", "killed": "red", "unreadable": "red"}


def runs(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder with the runs.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print each run as one line of JSON.")] = False,
) -> None:
    """List the runs in a folder, the one that was last written to first.

    A run is running, finished, stopped (asked to, and saved), failed (by an
    error) or killed. One that another program made and did not finish is
    unfinished.

    \b
    Example:
      treadle runs
      treadle runs experiments --json
    """
    with report_errors("runs"):
        require_folder(folder, "runs are listed by their folders")
        if not folder.is_dir():
            raise ConfigError(f"there is no folder {folder}")
        found = sorted((summarize_run(run, folder) for run in find_runs(folder)), key=lambda facts: facts.age)
        if as_json:
            for facts in found:
                typer.echo(json.dumps(asdict(facts), sort_keys=True))
        elif found:
            _show(found)
        else:
            typer.echo(f"there are no runs in {folder}")


def _show(found: list[RunSummary]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("run", overflow="fold", ratio=1)
    for name in ("step", "state", "loss", "best", "age", "size"):
        table.add_column(name, justify="left" if name == "state" else "right", no_wrap=name != "best")
    for facts in found:
        limit = "" if facts.limit is None else f"/{facts.limit}"
        best = "" if facts.best is None else f"{facts.best_metric} {facts.best:.4g}"
        table.add_row(
            Text(printable(facts.name)),
            f"{'' if facts.step is None else facts.step}{limit}",
            Text(printable(facts.state), style=COLOURS.get(facts.state, "")),
            "" if facts.loss is None else f"{facts.loss:.4g}",
            Text(printable(best)),
            duration(facts.age),
            size(facts.size),
        )
    console = Console()
    console.print(table)
    for facts in found:
        for problem in facts.problems:
            console.print(Text(printable(f"{facts.name}: {problem}"), style="red"))


def duration(seconds: float) -> str:
    """Return a time span in its largest unit.

    >>> [duration(value) for value in (5, 90, 7300, 200_000)]
    ['5 s', '1 min', '2 h', '2 d']
    """
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return f"{int(seconds)} s"


def size(count: int) -> str:
    """Return a number of bytes in a unit that keeps it short.

    >>> [size(value) for value in (12, 1536, 3_500_000, 42_000_000_000)]
    ['12 B', '1.5 KiB', '3.3 MiB', '39 GiB']
    """
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            break
        value /= 1024
    return f"{value:.1f} {unit}" if unit != "B" and value < 10 else f"{value:.0f} {unit}"
