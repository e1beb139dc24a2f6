"""`treadle demo`: small complete runs to begin with."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from treadle.cli._errors import report_errors
from treadle.cli.report import write_page
from treadle.tools.demo import DEMOS, find_demo


def demo(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Which one; without a name a terminal is asked.")
    ] = None,
    run_dir: Annotated[
        Path | None, typer.Option("--run-dir", "-o", metavar="DIR", help="Its folder; runs/demo-NAME by default.")
    ] = None,
) -> None:
    """Run a small demonstration: digits, recommender, search or language-model.

    Each takes less than a minute on a CPU. The data is made on the spot, or
    comes with scikit-learn; nothing is downloaded. Started again, it resumes
    where it was.

    \b
    Example:
      treadle demo
      treadle demo digits
    """
    with report_errors("demo"):
        chosen = name or _ask()
        if chosen is None:
            return
        found = find_demo(chosen)
        folder = run_dir or Path("runs") / f"demo-{found.name}"
        typer.echo(f"{found.title}\n")
        _use_one_thread()
        found.run(folder, typer.echo)
        _say_what_next(found.name, folder, run_dir)


def _ask() -> str | None:
    """Show the menu, and return what is chosen from it; None where nobody can be asked."""
    typer.echo("Demonstrations, each of less than a minute on a CPU:\n")
    for number, one in enumerate(DEMOS, start=1):
        typer.echo(f"  {number}  {one.name:<16}{one.title}")
    if not sys.stdin.isatty():
        typer.echo(f"\nRun one by: treadle demo {DEMOS[0].name}")
        return None
    answer: str = typer.prompt("\nWhich one", default="1")
    return answer


def _use_one_thread() -> None:
    """Compute on one core, unless the user has said on how many.

    These models are so small that a second thread saves nothing. Where the cores are busy, it burns many times as much
    in waiting: a demonstration of half a minute took more than two.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        import torch

        torch.set_num_threads(1)


def _say_what_next(name: str, folder: Path, given: Path | None) -> None:
    """Say where the run lies, and what can be done with it."""
    from treadle.runs.reader import find_runs

    runs = list(find_runs(folder))
    pages = [page for page in (write_page([run]) for run in runs) if page is not None]
    again = f"treadle demo {name}" + ("" if given is None else f" --run-dir {given}")
    steps = [*((f"open {page}", "curves, settings and checkpoints of the run") for page in pages)]
    if len(runs) > 1:
        steps.append((f"treadle report {folder} -o both.html", "the runs over each other"))
    steps.append((again, "resumes where it was, after Ctrl-C or kill -9 too"))
    steps.append(("treadle init my_project", "begin a project of your own"))
    width = max(len(command) for command, _ in steps)
    typer.echo(f"\nEverything is in {folder}. What next:")
    for command, what in steps:
        typer.echo(f"  {command:<{width}}  {what}")
