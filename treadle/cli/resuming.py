"""`treadle resume`: a run gone on with, from the config that it saved."""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from treadle.cli import worker
from treadle.cli.consent import Allow, allow_options, ask_for_config
from treadle.cli.launch import Launch, parse_launch
from treadle.cli.launching import run_group
from treadle.cli.options import LaunchOptions, Overrides, Run, with_launch_options
from treadle.cli.reporting import reported
from treadle.cli.sources import config_of_run, load_for_run
from treadle.errors import ConfigError
from treadle.run_lock import require_free
from treadle.run_status import read_status

if TYPE_CHECKING:
    from treadle.config import ConfigDict

SPLIT = ("train.train_micro_batch_size", "train.global_batch_size", "train.num_accumulation_steps")
"""The keys that say how an iteration is split."""


@with_launch_options
def resume(run: Run, overrides: Overrides = None, allow: Allow = None, *, options: LaunchOptions) -> None:
    """Go on with a run, from the config in its folder.

    A finished run goes on if it is made longer. On another number of
    processes the batch of an iteration stays what it was. Without --nproc
    there are as many as before. The run's config is carried out: of a folder
    that somebody else made, you are asked first (see --allow).

    \b
    Example:
      treadle resume runs/first
      treadle resume runs/first train.train_iter=20000
    """
    with reported("resume"), worker.ready():
        agreed = ask_for_config(config_of_run(run), allow)
        number = options.nproc or _earlier_number(run, options.nnodes)
        launch = parse_launch(replace(options, nproc=number))
        _go_on(run, overrides or [], launch, agreed)


def _earlier_number(run: Path, nnodes: str) -> str | None:
    """Return on how many processes the run was, if it was on one machine and this process starts them."""
    status = read_status(run)
    if status is None or nnodes != "1" or worker.is_one_of_several() or status.processes != status.processes_here:
        return None
    return str(status.processes) if status.processes > 1 else None


def _go_on(run: Path, overrides: list[str], launch: Launch, agreed: list[str]) -> None:
    made = load_saved(run, overrides)
    if launch.may_look:
        require_free(run)
    if launch.is_needed:
        arguments = ["resume", str(run), *allow_options(agreed), "--", *overrides]
        raise typer.Exit(run_group("resume", arguments, launch, run.name, run=run, dist=made.train.dist))
    from treadle.cli.run_here import run_here

    run_here(made, run)


def load_saved(run: Path, overrides: list[str]) -> "ConfigDict":
    """Return the config of a run, changed; the run's folder is the one given, wherever it was before.

    Raises:
        ConfigError: It cannot be loaded; where that may be because this is another folder, the message says so.
    """
    status = read_status(run)
    try:
        config = load_for_run(str(run), overrides)
    except ConfigError as error:
        if status is None or not status.folder or status.folder == os.getcwd():
            raise
        raise ConfigError(f"{error} (the run was started in {status.folder}; this is {os.getcwd()})") from error
    for key in ("model", "optim"):
        if key not in config:
            raise ConfigError(f"{run}/config.yaml has no {key!r}: the run was begun by a program; start that again")
    config.train.output_dir = str(run)
    _split_as_now(config, overrides)
    return config


def _split_as_now(config: "ConfigDict", overrides: list[str]) -> None:
    """Let the number of micro-batches be worked out anew where the number of processes is another one."""
    if any(key in text for text in overrides for key in SPLIT):
        return
    train, processes = config.train, int(os.environ.get("WORLD_SIZE", "1"))
    sizes = (train.train_micro_batch_size, train.global_batch_size, train.num_accumulation_steps)
    if None not in sizes and sizes[0] * sizes[2] * processes != sizes[1]:
        train.num_accumulation_steps = None
