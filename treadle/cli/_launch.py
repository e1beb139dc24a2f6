"""On how many processes a command runs, from its options and from where it was started."""

import os
import re
import signal
import sys
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from treadle.cli._errors import INTERRUPTED, complain
from treadle.cli._options import LaunchOptions
from treadle.parallel.launch import worker
from treadle.parallel.launch.slurm import SlurmTask, read_slurm_task, use_slurm_task
from treadle.parallel.launch.spec import Launch, Launcher
from treadle.runs.preemption import EXIT_CODE

if TYPE_CHECKING:
    from treadle.parallel.launch.torchrun import Group


def parse_launch(options: LaunchOptions) -> Launch:
    """Return how to launch, from the options of a command line and, in a job of SLURM, from its environment.

    Raises:
        typer.BadParameter: Options that cannot be meant.
        ConfigError: An environment of SLURM that is not whole.
    """
    endpoint = _endpoint(options.rdzv_endpoint, options.master_addr, options.master_port)
    least, most = _machines(options.nnodes)
    rank, restarts = options.node_rank, options.max_restarts
    if restarts is not None and restarts < 0:
        raise typer.BadParameter(f"--max-restarts {restarts} must be 0 or more")
    if options.launcher == Launcher.RAY:
        _check_ray(most, rank, endpoint)
        return Launch(_processes(options.nproc), restarts=restarts, launcher=Launcher.RAY)
    if most == 1 and not endpoint:
        by_slurm = _launch_in_step(options.nproc, restarts)
        if by_slurm is not None:
            return by_slurm
    _check_rendezvous(options, most, endpoint)
    launch = Launch(_processes(options.nproc), least, most, rank, endpoint, restarts, options.rdzv_id)
    if launch.is_needed and sys.platform == "win32":
        raise typer.BadParameter(
            "processes are started on Linux and macOS only: on Windows none could save when it is asked to leave; use "
            "one process here, or torchrun with -m treadle"
        )
    if launch.processes > 1 and worker.in_process_group() and not worker.is_worker():
        raise typer.BadParameter(
            f"--nproc {options.nproc}, but this process is already one of {os.environ['WORLD_SIZE']}; leave it out "
            "there"
        )
    return launch


def _check_rendezvous(options: LaunchOptions, machines: int, endpoint: str) -> None:
    """Refuse several machines that do not know where they meet, and a machine whose number is none of theirs."""
    rank = options.node_rank
    if machines > 1 and not endpoint:
        raise typer.BadParameter(f"--nnodes {options.nnodes} needs --rdzv-endpoint HOST:PORT, where the machines meet")
    if rank is not None and not endpoint:
        raise typer.BadParameter("--node-rank needs --rdzv-endpoint HOST:PORT, where the machines meet")
    if rank is not None and not 0 <= rank < machines:
        raise typer.BadParameter(f"--node-rank {rank} must be from 0 to {machines - 1}, for --nnodes {options.nnodes}")


def _endpoint(endpoint: str, address: str, port: int | None) -> str:
    """Return where machines meet, in one of its two spellings."""
    if (address or port is not None) and endpoint:
        raise typer.BadParameter(
            f"--rdzv-endpoint {endpoint} and --master-addr or --master-port say the same; give one of them"
        )
    if bool(address) != (port is not None):
        raise typer.BadParameter("--master-addr HOST and --master-port PORT go together; give both")
    found = f"{address}:{port}" if address else endpoint
    if found and not re.fullmatch(r".+:\d{1,5}", found):
        raise typer.BadParameter(f"--rdzv-endpoint {found!r} must be HOST:PORT, such as node0:29500")
    return found


def _check_ray(machines: int, node_rank: int | None, endpoint: str) -> None:
    if machines > 1 or node_rank is not None or endpoint:
        raise typer.BadParameter(
            "--launch ray places the processes itself; leave --nnodes, --node-rank and where machines meet out, and "
            "give the number of all processes as --nproc"
        )


def _launch_in_step(nproc: str | None, max_restarts: int | None) -> Launch | None:
    """Return how to launch as the task of a step that srun started on each machine; None if this is no such task.

    Tasks that are to be the processes themselves take their numbers from SLURM here.
    """
    if worker.in_process_group():
        return None
    if nproc is None and max_restarts is None:
        use_slurm_task()
        return None
    task = read_slurm_task()
    if task is None or task.size == 1:
        return None
    _check_one_each(task, nproc)
    return Launch(
        _processes(nproc),
        task.machines,
        task.machines,
        endpoint=f"{task.host}:{task.port}",
        restarts=max_restarts,
        name=task.name,
        is_rendezvous_host=task.machine == 0,
    )


def _check_one_each(task: SlurmTask, nproc: str | None) -> None:
    if task.size != task.machines:
        asked = "--max-restarts" if nproc is None else f"--nproc {nproc}"
        raise typer.BadParameter(
            f"{asked} has this command start the processes, but srun started {task.size} commands on {task.machines} "
            "machines; start one on each (--ntasks-per-node=1), or leave the option out"
        )


def _machines(nnodes: str) -> tuple[int, int]:
    found = re.fullmatch(r"([1-9]\d*)(?::([1-9]\d*))?", nnodes)
    if found is None or int(found[2] or found[1]) < int(found[1]):
        raise typer.BadParameter(f"--nnodes {nnodes!r} must be a number of machines, or a range such as 2:4")
    return int(found[1]), int(found[2] or found[1])


def _processes(nproc: str | None) -> int:
    if nproc is None:
        return 1
    if nproc == "gpu":
        from torch.cuda import device_count

        if not device_count():
            raise typer.BadParameter("--nproc gpu: this machine has no CUDA device; give a number")
        return device_count()
    if not re.fullmatch(r"[1-9]\d*", nproc):
        raise typer.BadParameter(f"--nproc {nproc!r} must be a number from 1 up, or 'gpu' for one on each GPU")
    return int(nproc)


# Several processes of one command: started together, started again when one dies, asked to leave together


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
        from treadle.cli._ray import run_on_ray

        assert run is not None
        return run_on_ray(command, arguments, launch, run, on_gpus=dist.device_type != "cpu", timeout=dist.timeout)
    from treadle.parallel.launch.torchrun import make_group

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
        left.append("left without saving anew; the same command resumes from the last checkpoint")
    if left:
        complain(command, left[0])
        return INTERRUPTED if group.signal == signal.SIGINT else EXIT_CODE
    if not done:
        complain(command, f"{group.failure or 'the processes did not come to their end'}; no restart is left")
    return 0 if done else 1


def _cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
