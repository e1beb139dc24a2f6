"""The processes of one command as the workers of a Ray cluster, which finds room for them and starts them again.

Ray carries only the command line: each worker runs the command as one of several processes. All machines must see the
folder it was started in and the folder of the run.
"""

import math
import os
import shutil
import sys
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer

from treadle.cli._errors import complain
from treadle.errors import ConfigError, importing
from treadle.parallel.launch import worker
from treadle.parallel.launch.spec import DEFAULT_RESTARTS, Launch

FOLDER = "ray"
"""Where in the folder of a run Ray keeps what is its own."""


def run_on_ray(
    command: str, arguments: Sequence[str], launch: Launch, run: Path, *, on_gpus: bool, timeout: float
) -> int:
    """Run a command of this application on the workers of a cluster, and return its exit status.

    The cluster is that of `RAY_ADDRESS`; without one, Ray starts on this machine.

    Args:
        command: The command, for messages.
        arguments: The whole command line of each process, behind `treadle`.
        launch: How many processes, and how often they are started again.
        run: The folder of the run.
        on_gpus: Whether the processes take a GPU each, where the cluster has any.
        timeout: Seconds that they wait for each other.

    Raises:
        MissingDependencyError: Ray is not installed.
        ConfigError: The cluster has no room.
    """
    ray, train = _import_ray()
    if not ray.is_initialized():
        ray.init()
    gpus = on_gpus and ray.cluster_resources().get("GPU", 0) > 0
    _check_room(ray.cluster_resources(), launch.processes, gpus)
    folder = (run / FOLDER / uuid.uuid4().hex).resolve()
    folder.mkdir(parents=True)
    trainer = train.torch.TorchTrainer(
        _work,
        train_loop_config={
            "arguments": list(arguments),
            "folder": str(folder),
            "cwd": os.getcwd(),
            "path": [os.path.abspath(entry) for entry in sys.path],
        },
        # As they join elsewhere; here it is Ray that has them join.
        torch_config=train.torch.TorchConfig(
            backend="cpu:gloo,cuda:nccl" if gpus else "gloo", timeout_s=math.ceil(timeout)
        ),
        scaling_config=train.ScalingConfig(num_workers=launch.processes, use_gpu=gpus),
        run_config=train.RunConfig(
            name=folder.name,
            storage_path=str(folder.parent),
            failure_config=train.FailureConfig(
                max_failures=DEFAULT_RESTARTS if launch.restarts is None else launch.restarts
            ),
        ),
    )
    try:
        return _status(command, trainer, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # another start of the run may use it
            folder.parent.rmdir()


def _import_ray() -> tuple[Any, Any]:
    with importing("ray", extra="ray", user="--launch ray"):
        import ray
        import ray.train.torch
    return ray, ray.train


def _check_room(resources: dict[str, float], processes: int, gpus: bool) -> None:
    """Refuse what the cluster could never place: Ray itself would wait for ever for more machines."""
    kind = "GPU" if gpus else "CPU"
    there = int(resources.get(kind, 0))
    if there < processes:
        raise ConfigError(
            f"--launch ray --nproc {processes} needs a {kind} for each process, but the cluster has {there}; give a "
            "smaller --nproc, or add machines"
        )


def _status(command: str, trainer: Any, folder: Path) -> int:
    error: Exception | None = None
    try:
        trainer.fit()
    except Exception as caught:
        error = caught
    refusals = _refusals(folder)
    if refusals:
        complain(command, refusals[0].message)
    elif error is not None:
        first = min(_last_reports(folder), key=lambda report: report.time, default=None)
        if first is not None:
            typer.echo(first.message, err=True)
        what = f"Ray could not run the processes: {error}" if first is None else f"process {first.rank} failed"
        complain(command, f"{what}; no restart is left")
    return int(bool(refusals) or error is not None)


def _refusals(folder: Path) -> list[worker.Report]:
    """Return what processes were refused for, in any start."""
    told = [report for start in folder.glob("start_*") for report in worker.reports(start)]
    return sorted((report for report in told if report.state == worker.REFUSED), key=lambda report: report.time)


def _last_reports(folder: Path) -> list[worker.Report]:
    """Return what the processes of the last start told."""
    starts = sorted(folder.glob("start_*"), key=lambda path: path.stat().st_mtime)
    return worker.reports(starts[-1]) if starts else []


def _work(config: dict[str, Any]) -> None:
    """Run the command in a worker, which Ray has numbered as torchrun would have."""
    os.chdir(config["cwd"])
    sys.path[:] = [*config["path"], *(entry for entry in sys.path if entry not in config["path"])]
    folder = Path(config["folder"])
    if _refusals(folder):
        # What one process of an earlier start was refused for would be refused again.
        return
    # Ray meets anew, at another port, with each start.
    reports = folder / f"start_{os.environ['MASTER_PORT']}"
    reports.mkdir(exist_ok=True)
    os.environ[worker.LAUNCHER] = f"0:{reports}"
    # What the run notes as its command line; Ray's own would tell nobody how to start it again.
    sys.argv = ["treadle", *config["arguments"]]
    # The package has it, which Ray imported to find this function; to import it here would close a circle.
    status = sys.modules[__package__].app(config["arguments"], prog_name="treadle", standalone_mode=False)
    if status and any(report.rank == int(os.environ["RANK"]) for report in _refusals(folder)):
        # No failure, for Ray would start all of them again; but whoever was not refused must not wait for this one.
        _leave_process_group()
    elif status:
        raise RuntimeError(f"the command ended with status {status}")


def _leave_process_group() -> None:
    from treadle.parallel.processes import leave_group

    leave_group()
