"""Several processes of one command: started together, started again when one dies, asked to leave together."""

import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.cli import worker
from treadle.cli.launch import Launch
from treadle.cli.options import Launcher
from treadle.cli.reporting import INTERRUPTED, complain
from treadle.leaving import EXIT_CODE

if TYPE_CHECKING:
    from treadle.cli.group import Group


def run_group(
    command: str,
    arguments: Sequence[str],
    launch: Launch,
    name: str,
    *,
    run: Path | None = None,
    dist: Any = None,
) -> int:
    """Run a command of this application on several processes, and return its exit status.

    Args:
        command: The command, for messages.
        arguments: The whole command line of each process, behind `treadle`.
        launch: How many, and where they meet.
        name: A name that the launchers on all machines agree on, unless the launch has one.
        run: The folder of the run, which all machines see; Ray needs it.
        dist: What the config says of processes, `train.dist`; Ray needs it.
    """
    if launch.launcher == Launcher.RAY:
        from treadle.cli.ray_group import run_on_ray

        assert run is not None
        return run_on_ray(command, arguments, launch, run, on_gpus=dist.device_type != "cpu", timeout=dist.timeout)
    from treadle.cli.group import make_group

    with tempfile.TemporaryDirectory(prefix="treadle-launch-", ignore_cleanup_errors=True) as folder:
        os.environ[worker.LAUNCHER] = f"{os.getpid()}:{folder}"
        # Unless somebody chose otherwise, the processes share the cores instead of fighting for them.
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, _cores() // launch.processes)))
        group = make_group(
            [sys.executable, "-m", "treadle.cli", *arguments],
            launch,
            launch.name or name or uuid.uuid4().hex,
            Path(folder),
        )
        return _status(command, group, Path(folder))


def _status(command: str, group: "Group", folder: Path) -> int:
    """Run the group, say what there is to say, and return the exit status of the command."""
    done = group.run_to_end()
    if group.refusal:
        complain(command, group.refusal)
        return 1
    # One that is ended because another one died leaves in good order too; that is no leaving of the run.
    asked = done or group.signal is not None
    left = [report.message for report in worker.reports(folder) if report.state == worker.LEFT and asked]
    if group.signal is not None and not done:
        left.append("left without saving anew; the same command goes on from the last checkpoint")
    if left:
        complain(command, left[0])
        return INTERRUPTED if group.signal == signal.SIGINT else EXIT_CODE
    if not done:
        complain(command, f"{group.failure or 'the processes did not come to their end'}; no restart is left")
    return 0 if done else 1


def _cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
