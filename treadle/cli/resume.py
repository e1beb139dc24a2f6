"""`treadle resume`: a run gone on with, from the config that it saved."""

from dataclasses import replace
from pathlib import Path

import typer

from treadle.cli._consent import Allow, allow_options, confirm_config
from treadle.cli._errors import report_errors
from treadle.cli._launch import parse_launch, run_group
from treadle.cli._options import LaunchOptions, Overrides, Run, Verbose, with_launch_options
from treadle.parallel.launch import worker
from treadle.parallel.launch.spec import Launch
from treadle.runs.lock import require_free
from treadle.runs.status import read_status
from treadle.tools.run_config import find_run_config, load_saved


@with_launch_options
def resume(
    run: Run, overrides: Overrides = None, allow: Allow = None, verbose: Verbose = False, *, options: LaunchOptions
) -> None:
    """Resume a run, from the config in its folder.

    A finished run continues if it is made longer. On another number of
    processes the batch of an iteration stays what it was. Without --nproc
    there are as many as before. The run's config is carried out: of a folder
    that somebody else made, you are asked first (see --allow).

    \b
    Example:
      treadle resume runs/first
      treadle resume runs/first train.train_iter=20000
    """
    with report_errors("resume"), worker.ready():
        agreed = confirm_config(find_run_config(run), allow)
        number = options.nproc or _earlier_number(run, options.nnodes)
        launch = parse_launch(replace(options, nproc=number))
        _go_on(run, overrides or [], launch, agreed, verbose=verbose)


def _earlier_number(run: Path, nnodes: str) -> str | None:
    """Return on how many processes the run was, if it was on one machine and this process starts them."""
    status = read_status(run)
    if status is None or nnodes != "1" or worker.in_process_group() or status.processes != status.processes_here:
        return None
    return str(status.processes) if status.processes > 1 else None


def _go_on(run: Path, overrides: list[str], launch: Launch, agreed: list[str], *, verbose: bool) -> None:
    made = load_saved(run, overrides)
    if launch.may_look:
        require_free(run)
    if launch.is_needed:
        arguments = ["resume", str(run), *(["--verbose"] * verbose), *allow_options(agreed), "--", *overrides]
        raise typer.Exit(run_group("resume", arguments, launch, run.name, run=run, dist=made.train.dist))
    from treadle.cli._run import run_in_process

    run_in_process(made, run, verbose=verbose)
