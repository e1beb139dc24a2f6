"""`treadle init`: a small project to begin with."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from treadle.cli.reporting import reported
from treadle.starting import package_of, write_project


def init(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The folder of the project; its last part is its name.")],
) -> None:
    """Write a small project: a config, a model, data, tests and a README.

    It trains and its tests pass as it is. Put your own model and data in the
    place of its. Nothing that is there is written over.

    \b
    Example:
      treadle init my_project
      cd my_project && treadle train configs/train.py
    """
    with reported("init"):
        folder = Path(name)
        written = write_project(folder)
        typer.echo(f"{folder}: a project whose package is {package_of(folder)}")
        for path in written:
            typer.echo(f"  {path}")
        typer.echo(f"\nWhat next:\n  cd {shlex.quote(str(folder))}\n  treadle train configs/train.py")
        typer.echo("  python -m pytest  # needs pytest")
