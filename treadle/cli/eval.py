"""`treadle eval`: the model of a run, measured on its test data."""

import json
import logging
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from treadle.cli._consent import Allow, allow_options, confirm_config
from treadle.cli._errors import report_errors
from treadle.cli._launch import parse_launch, run_group
from treadle.cli._options import LaunchOptions, Nproc, Overrides, Run
from treadle.errors import CheckpointError, ConfigError
from treadle.parallel.launch import worker
from treadle.tools.run_config import find_run_config, load_saved

if TYPE_CHECKING:
    from treadle.checkpoint import CheckpointStore


def evaluate(
    run: Run,
    overrides: Overrides = None,
    checkpoint: Annotated[
        str, typer.Option("--checkpoint", "-c", metavar="WHICH", help="best, last, or the number of an iteration.")
    ] = "last",
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as one line of JSON.")] = False,
    nproc: Nproc = None,
    allow: Allow = None,
) -> None:
    """Measure the model of a run on its test data.

    Nothing in the run's folder is changed. The run's config is carried out: of
    a folder that somebody else made, you are asked first (see --allow).

    \b
    Example:
      treadle eval runs/first --checkpoint best
      treadle eval runs/first train.test_micro_batch_size=256 --json
    """
    with report_errors("eval"), worker.ready():
        agreed = confirm_config(find_run_config(run), allow)
        launch = parse_launch(LaunchOptions(nproc))
        changes = overrides or []
        if launch.is_needed:
            load_saved(run, changes)
            flags = ["--checkpoint", checkpoint, *(["--json"] if as_json else []), *allow_options(agreed)]
            raise typer.Exit(run_group("eval", ["eval", str(run), *flags, "--", *changes], launch, ""))
        step, results = _measure(run, changes, checkpoint)
        if worker.is_first():
            _show(run, step, results, as_json=as_json)


def _measure(run: Path, overrides: list[str], which: str) -> tuple[int, dict[str, float]]:
    from treadle.checkpoint import CheckpointStore, Policy
    from treadle.engine.trainers.factory import build_trainer
    from treadle.events import flatten_results

    _show_warnings_only()
    config = load_saved(run, overrides)
    store = CheckpointStore(run / "checkpoints", Policy())
    step = find_checkpoint_step(run, store, which)
    with tempfile.TemporaryDirectory(prefix="treadle-eval-", ignore_cleanup_errors=True) as scratch:
        config.train.update(output_dir=scratch, resume=False, load_weight=str(store.path(step)))
        trainer = build_trainer(config)(config)
        if not trainer.test_loader:
            raise ConfigError(f"{run}/config.yaml has no test data; add dataloader.test")
        results = trainer.test(trainer.cfg, trainer.test_loader, trainer.graph_eval or trainer.model)
    return step, flatten_results(results)


def _show_warnings_only() -> None:
    """Have warnings shown, on stderr: they are no part of the answer, and progress is for training."""
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    logging.basicConfig(handlers=[handler], format="%(levelname)s: %(message)s")


def find_checkpoint_step(run: Path, store: "CheckpointStore", which: str) -> int:
    """Return the iteration of the checkpoint that `which` names.

    Raises:
        CheckpointError: There is no such checkpoint; the message lists those that are there.
    """
    steps = store.steps()
    if not steps:
        raise CheckpointError(f"{run} holds no checkpoint")
    step = int(which) if which.isdecimal() else store.newest_good() if which == "last" else store.pointer(which)
    if step is None or step not in steps:
        names = [name for name in store.pointers() if store.pointer(name) is not None]
        raise CheckpointError(f"{run} has no checkpoint {which!r}; it has {', '.join([*names, *map(str, steps)])}")
    store.manifest(step, verify=True)
    return step


def _show(run: Path, step: int, results: dict[str, float], *, as_json: bool) -> None:
    if as_json:
        from treadle.runs.metrics_file import plain_number

        typer.echo(json.dumps({"iteration": step, **plain_number(results)}, sort_keys=True))
        return
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    console.print(f"{run}, after iteration {step}", markup=False)
    table = Table()
    table.add_column("metric")
    table.add_column("value", justify="right")
    for name, value in results.items():
        table.add_row(name, _number(value))
    console.print(table)


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
