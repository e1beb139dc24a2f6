"""`treadle runs`: the runs in a folder, and how they are doing."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from treadle.bounded_reading import printable
from treadle.cli.reporting import reported
from treadle.cli.run_facts import RunFacts, facts_of, find_runs
from treadle.errors import ConfigError
from treadle.run_place import require_folder

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
    with reported("runs"):
        require_folder(folder, "runs are listed by their folders")
        if not folder.is_dir():
            raise ConfigError(f"there is no folder {folder}")
        found = sorted((facts_of(run, folder) for run in find_runs(folder)), key=lambda facts: facts.age)
        if as_json:
            for facts in found:
                typer.echo(json.dumps(asdict(facts), sort_keys=True))
        elif found:
            _show(found)
        else:
            typer.echo(f"there are no runs in {folder}")


def _show(found: list[RunFacts]) -> None:
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
