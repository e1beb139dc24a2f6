"""`treadle init`: a small project to begin with."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from treadle.cli._errors import report_errors
from treadle.tools.scaffold import existing_entries, package_name, write_project

SHOWN = 5
"""How many things are named that a folder held before."""


def init(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The folder of the project; its last part is its name.")],
) -> None:
    """Write a small project: a config, a model, data, tests and a README.

    It trains and its tests pass as it is. Put your own model and data in the
    place of its. In a folder that holds something nothing is written over: a
    file of the project that is there already ends it before it begins.

    \b
    Example:
      treadle init my_project
      cd my_project && treadle train configs/train.py
      treadle init .
    """
    with report_errors("init"):
        folder = Path(name)
        others = existing_entries(folder)
        written = write_project(folder)
        typer.echo(f"{folder}: a project whose package is {package_name(folder)}")
        for path in written:
            typer.echo(f"  {path}")
        if others:
            typer.echo(f"The folder was not empty. What it held is as it was: {_few(others)}")
        typer.echo("\nWhat next:")
        if folder.resolve() != Path.cwd():
            typer.echo(f"  cd {shlex.quote(str(folder))}")
        typer.echo("  treadle train configs/train.py")
        typer.echo("  python -m pytest  # needs pytest")


def _few(names: list[str]) -> str:
    """Return the first of some names, and how many more there are."""
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")
