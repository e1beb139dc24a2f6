"""The application that the commands hang on; nothing here imports torch or OmegaConf."""

import os
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from treadle.cli.config import configs
from treadle.cli.data import data
from treadle.cli.demo import demo
from treadle.cli.doctor import doctor
from treadle.cli.eval import evaluate
from treadle.cli.export import export
from treadle.cli.fetch import fetch
from treadle.cli.init import init
from treadle.cli.migrate import import_checkpoint, migrate
from treadle.cli.recsys import recsys
from treadle.cli.report import report
from treadle.cli.resume import resume
from treadle.cli.runs import runs
from treadle.cli.search import search
from treadle.cli.slurm import slurm
from treadle.cli.train import train
from treadle.cli.verify import verify

app = typer.Typer(
    name="treadle",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _say_version(asked: bool) -> None:
    if asked:
        typer.echo(f"treadle {version('treadle')}, torch {version('torch')}, Python {sys.version.split()[0]}")
        raise typer.Exit


@app.callback()
def main(
    about: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Show the versions and exit.")
    ] = False,
) -> None:
    """One training loop for PyTorch, four front doors.

    A run is started from a config, and started again by the same command: it
    resumes where it was. What it was is in its folder.

    \b
    Example:
      treadle train configs/gpt.py optim.lr=1e-3 --run-dir runs/first
      treadle runs
      treadle eval runs/first --checkpoint best
    """
    # As `python -m` does, so that `examples.gpt.GPT` is found from the folder that holds `examples`.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


app.command("demo")(demo)
app.command("init")(init)
app.command("train")(train)
app.command("resume")(resume)
app.command("eval")(evaluate)
app.command("search")(search)
app.command("slurm")(slurm)
app.command("runs")(runs)
app.command("report")(report)
app.command("doctor")(doctor)
app.command("verify")(verify)
app.add_typer(configs, name="config")
app.add_typer(data, name="data")
app.command("export")(export)
app.command("fetch")(fetch)
app.command("import")(import_checkpoint)
app.command("migrate")(migrate)
app.add_typer(recsys, name="recsys")
