"""On how many processes a command runs, from its options and from where it was started."""

import os
import re
from dataclasses import dataclass

import typer

from treadle.cli import worker
from treadle.cli.options import Launcher, LaunchOptions
from treadle.slurm import SlurmTask, adopt_task, slurm_task

DEFAULT_RESTARTS = 3
MEETING_SECONDS = 900


@dataclass(frozen=True)
class Launch:
    """How many processes a command runs on, and where they meet.

    Attributes:
        processes: How many on this machine; on Ray, how many in all.
        least_machines: How many machines there must be.
        most_machines: How many there may be.
        machine: The number of this machine; None has the machines find their numbers themselves.
        endpoint: Where machines meet, as `host:port`; empty for one machine.
        restarts: How often all processes are started again when one has died.
        name: A name that the launchers on all machines agree on; empty for that of the run.
        is_meeting_place: Whether the endpoint is on this machine; None finds it out from its name.
        launcher: Who starts the processes: this command, as torchrun does, or Ray.
    """

    processes: int = 1
    least_machines: int = 1
    most_machines: int = 1
    machine: int | None = None
    endpoint: str = ""
    restarts: int | None = None
    name: str = ""
    is_meeting_place: bool | None = None
    launcher: str = Launcher.PROCESSES

    @property
    def is_needed(self) -> bool:
        """Whether other processes have to be started at all; one of several is never a launcher."""
        several = self.processes > 1 or self.most_machines > 1 or self.restarts is not None
        return (several or self.launcher == Launcher.RAY) and not worker.is_one_of_several()

    @property
    def may_look(self) -> bool:
        """Whether a process that trains in the folder cannot be one that this command belongs to."""
        return self.most_machines == 1 and not worker.is_one_of_several()


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
    _check_meeting(options, most, endpoint)
    launch = Launch(_processes(options.nproc), least, most, rank, endpoint, restarts, options.rdzv_id)
    if launch.processes > 1 and worker.is_one_of_several() and not worker.is_worker():
        raise typer.BadParameter(
            f"--nproc {options.nproc}, but this process is already one of {os.environ['WORLD_SIZE']}; leave it out "
            "there"
        )
    return launch


def _check_meeting(options: LaunchOptions, machines: int, endpoint: str) -> None:
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
    if worker.is_one_of_several():
        return None
    if nproc is None and max_restarts is None:
        adopt_task()
        return None
    task = slurm_task()
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
        is_meeting_place=task.machine == 0,
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
