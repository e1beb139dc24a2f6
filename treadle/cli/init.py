"""`treadle init`: a small project to begin with."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from treadle.cli._errors import report_errors
from treadle.tools.scaffold import existing_entries, find_door, package_name, write_project

SHOWN = 5
"""How many things are named that a folder held before."""


def init(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The folder of the project; its last part is its name.")],
    door: Annotated[
        str,
        typer.Option(
            "--door",
            "-d",
            metavar="DOOR",
            help="core (a program), engine (a config), recsys (a recommender) or search (over trials).",
        ),
    ] = "engine",
) -> None:
    """Write a small project: a model, data, how it is trained, tests, a README.

    It trains and its tests pass as it is. Put your own model and data in the
    place of its. In a folder that holds something nothing is written over: a
    file of the project that is there already ends it before it begins.

    \b
    Example:
      treadle init my_project
      cd my_project && treadle train configs/train.py
      treadle init my_project --door core
      treadle init .
    """
    with report_errors("init"):
        folder = Path(name)
        others = existing_entries(folder)
        written = write_project(folder, door)
        typer.echo(f"{folder}: a project whose package is {package_name(folder)}")
        for path in written:
            typer.echo(f"  {path}")
        if others:
            typer.echo(f"The folder was not empty. What it held is as it was: {_few(others)}")
        typer.echo("\nWhat next:")
        if folder.resolve() != Path.cwd():
            typer.echo(f"  cd {shlex.quote(str(folder))}")
        typer.echo(f"  {find_door(door).start.replace('@package@', package_name(folder))}")
        typer.echo("  python -m pytest  # needs pytest")


def _few(names: list[str]) -> str:
    """Return the first of some names, and how many more there are."""
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")
