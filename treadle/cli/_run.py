"""A run in this process: what the command line says of it, before and after."""

import logging
import shlex
import sys
from pathlib import Path
from typing import Any

import typer

from treadle.cli.report import write_page
from treadle.config import ConfigDict, LazyConfig
from treadle.config.files import plain
from treadle.config.yaml_format import from_yaml
from treadle.console.lines import DETAIL
from treadle.engine import DefaultTrainer
from treadle.engine.config.saved import config_to_save
from treadle.engine.setup import prepare_environment, setup_logger
from treadle.engine.trainers.factory import build_trainer
from treadle.events import flatten_results
from treadle.files.bounded_io import without_passwords
from treadle.parallel.launch import worker
from treadle.tools.run_config import CONFIG_FILE, differences

logger = logging.getLogger(__name__)

OWN_KEYS = ("train.start_iter", "train.resume", "train.output_dir", "trainer._target_")
"""Keys that a start of a run sets itself."""


def run_in_process(config: ConfigDict, folder: Path, *, keep_resume: bool = False, verbose: bool = False) -> None:
    """Begin the run that `config` describes in `folder`, or go on with it.

    Args:
        config: The config, complete and changed.
        folder: The run's folder.
        keep_resume: Whether `train.resume` is as the user wants it; otherwise a run that is there goes on.
        verbose: Whether the console has the whole configuration, and all that the log of the run has.
    """
    setup_logger(verbose=verbose)
    trainer = _build(config, folder, resume=config.train.resume if keep_resume else "auto")
    begin, end = trainer.start_iter, trainer.max_iter
    if begin >= end and trainer.checkpointer.is_complete():
        say(f"{folder} is finished: {begin} of {end} iterations are done; raise train.train_iter to train longer")
        return
    if begin:
        say(f"{folder}: resuming from iteration {begin} of {end}")
    logger.info("the configuration:\n%s", LazyConfig.to_py(trainer.cfg), extra=DETAIL)
    results = trainer.train()
    reached = "finished" if trainer.iter >= end else "stopped"
    say(f"{folder}: {reached} after {trainer.iter} of {end} iterations{_shown(results)}")
    if worker.is_first():
        write_page([folder])


def run_fast(config: ConfigDict, folder: Path) -> None:
    """Run a few iterations of everything, read back what was saved, and say what happened."""
    trainer = _build(config, folder, resume=False)
    results = trainer.train()
    trainer.checkpointer.load(folder)
    steps = trainer.checkpointer.store.steps()
    say("fast dev run:")
    say(f"  trained    {trainer.iter} iterations of {trainer.global_batch_size} samples on {trainer.device}")
    say(f"  loss       {_course(trainer)}")
    say(f"  evaluated  {_shown(results).removeprefix(': ') or 'nothing: there are no test data'}")
    say(f"  saved      iterations {', '.join(map(str, steps))}; the last was read back")


def _course(trainer: DefaultTrainer) -> str:
    """Return the first and the last loss, in words."""
    if "total_loss" not in trainer.storage.names():
        return "none was reported"
    losses = trainer.storage.history("total_loss").values()
    return f"{losses[0][0]:.4g} at first, {losses[-1][0]:.4g} at last"


def _build(config: ConfigDict, folder: Path, *, resume: Any) -> DefaultTrainer:
    config.train.update(output_dir=str(folder), resume=resume)
    prepare_environment(config)
    earlier = folder / CONFIG_FILE
    before = from_yaml(earlier.read_text(encoding="utf-8"), str(earlier)) if earlier.is_file() else None
    trainer = build_trainer(config)(config)
    logger.info("command line: %s", without_passwords(shlex.join(sys.argv)), extra=DETAIL)
    if before is not None and trainer.start_iter and worker.is_first():
        _say_changes(before, plain(config_to_save(trainer.cfg)))
    return trainer


def _say_changes(before: Any, after: Any) -> None:
    """Log in what the config is another one than at the last start."""
    for found in differences(before, after):
        if found.key not in OWN_KEYS:
            values = " -> ".join(value for value in (found.before, found.after) if value)
            logger.info("since the last start %s is %s: %s", found.key, found.kind, values)


def _shown(results: Any) -> str:
    """Return the numbers of an evaluation in one line; empty if there are none."""
    if not results:
        return ""
    return ": " + ", ".join(f"{name} {value:.5g}" for name, value in flatten_results(results).items())


def say(text: str) -> None:
    """Print a line, once for all processes."""
    if worker.is_first():
        typer.echo(text)
