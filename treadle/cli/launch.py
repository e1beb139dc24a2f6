"""On how many processes a command runs, from its options."""

import os
import re
from dataclasses import dataclass

import typer

from treadle.cli import worker

DEFAULT_RESTARTS = 3


@dataclass(frozen=True)
class Launch:
    """How many processes a command runs on, and where they meet.

    Attributes:
        processes: How many on this machine.
        least_machines: How many machines there must be.
        most_machines: How many there may be.
        machine: The number of this machine; None has the machines find their numbers themselves.
        endpoint: Where machines meet, as `host:port`; empty for one machine.
        restarts: How often all processes are started again when one has died.
    """

    processes: int = 1
    least_machines: int = 1
    most_machines: int = 1
    machine: int | None = None
    endpoint: str = ""
    restarts: int | None = None

    @property
    def is_needed(self) -> bool:
        """Whether other processes have to be started at all; one of several is never a launcher."""
        several = self.processes > 1 or self.most_machines > 1 or self.restarts is not None
        return several and not worker.is_one_of_several()

    @property
    def may_look(self) -> bool:
        """Whether a process that trains in the folder cannot be one that this command belongs to."""
        return self.most_machines == 1 and not worker.is_one_of_several()


def parse_launch(
    nproc: str | None, nnodes: str, node_rank: int | None, rdzv_endpoint: str, max_restarts: int | None
) -> Launch:
    """Return how to launch, from the options of a command line.

    Raises:
        typer.BadParameter: Options that cannot be meant.
    """
    least, most = _machines(nnodes)
    if most > 1 and not rdzv_endpoint:
        raise typer.BadParameter(f"--nnodes {nnodes} needs --rdzv-endpoint HOST:PORT, where the machines meet")
    if node_rank is not None and not rdzv_endpoint:
        raise typer.BadParameter("--node-rank needs --rdzv-endpoint HOST:PORT, where the machines meet")
    if max_restarts is not None and max_restarts < 0:
        raise typer.BadParameter(f"--max-restarts {max_restarts} must be 0 or more")
    launch = Launch(_processes(nproc), least, most, node_rank, rdzv_endpoint, max_restarts)
    if launch.processes > 1 and worker.is_one_of_several() and not worker.is_worker():
        raise typer.BadParameter(
            f"--nproc {nproc}, but this process is already one of {os.environ['WORLD_SIZE']}; leave it out there"
        )
    return launch


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
