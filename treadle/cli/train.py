"""`treadle train`: a run from a config, begun or gone on with."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from treadle.cli._consent import Allow, allow_options, confirm_source
from treadle.cli._errors import report_errors
from treadle.cli._launch import parse_launch, run_group
from treadle.cli._options import LaunchOptions, Overrides, Verbose, with_launch_options
from treadle.errors import ConfigError
from treadle.parallel.launch import worker
from treadle.parallel.launch.spec import Launch
from treadle.runs.lock import require_free
from treadle.tools.run_config import find_run_dir, load_for_run


@with_launch_options
def train(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A lazy config: a .py or .yaml file.")],
    overrides: Overrides = None,
    run_dir: Annotated[
        Path | None,
        typer.Option("--run-dir", "-o", metavar="DIR", help="The run's folder, in place of train.output_dir."),
    ] = None,
    fast_dev_run: Annotated[
        bool, typer.Option("--fast-dev-run", help="A few iterations of everything, in a folder that is then removed.")
    ] = False,
    allow: Allow = None,
    verbose: Verbose = False,
    *,
    options: LaunchOptions,
) -> None:
    """Train what a config describes; started again, resume where it was.

    The run is kept in its folder: config, metrics, log and checkpoints. The
    same command after a kill resumes from the last checkpoint, and ends like a
    run that was never killed. SIGTERM saves first, and exits with status 75.

    \b
    Example:
      treadle train configs/gpt.py train.train_iter=500 optim.lr=1e-3
      treadle train configs/gpt.py -o runs/wide model.width=512 --nproc 2
      treadle train configs/gpt.py --fast-dev-run
    """
    with report_errors("train"), worker.ready():
        launch = parse_launch(options)
        agreed = confirm_source(config, allow)
        with _scratch(fast_dev_run and run_dir is None) as scratch:
            _start(config, overrides or [], run_dir or scratch, fast_dev_run, launch, agreed, verbose=verbose)


def _start(
    source: str,
    overrides: list[str],
    run_dir: Path | None,
    fast: bool,
    launch: Launch,
    agreed: list[str],
    *,
    verbose: bool,
) -> None:
    if Path(source).is_dir():
        raise ConfigError(f"{source} is a folder; give a config file, or resume a run by 'treadle resume {source}'")
    made = load_for_run(source, overrides, fast=fast)
    folder = find_run_dir(made, source, run_dir)
    if launch.may_look:
        require_free(folder)
    if launch.is_needed:
        flags = ["--fast-dev-run"] * fast + ["--verbose"] * verbose + allow_options(agreed)
        arguments = ["train", source, "--run-dir", str(folder), *flags, "--", *overrides]
        status = run_group("train", arguments, launch, folder.name, run=folder, dist=made.train.dist)
        raise typer.Exit(status)
    from treadle.cli._run import run_fast, run_in_process

    if fast:
        run_fast(made, folder)
    else:
        run_in_process(made, folder, verbose=verbose, keep_resume=any("train.resume=" in text for text in overrides))


@contextmanager
def _scratch(wanted: bool) -> Iterator[Path | None]:
    """Yield a folder that is removed at the end; None if none is wanted."""
    if not wanted:
        yield None
        return
    folder = Path(tempfile.mkdtemp(prefix="treadle-fast-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
