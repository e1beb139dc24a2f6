"""On how many processes something runs, and where they meet."""

from dataclasses import dataclass
from enum import StrEnum

from treadle.parallel.launch import worker

DEFAULT_RESTARTS = 3
MEETING_SECONDS = 900


class Launcher(StrEnum):
    """Who starts the processes of a command."""

    PROCESSES = "processes"
    RAY = "ray"


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
        is_rendezvous_host: Whether the endpoint is on this machine; None finds it out from its name.
        launcher: Who starts the processes: this command, as torchrun does, or Ray.
    """

    processes: int = 1
    least_machines: int = 1
    most_machines: int = 1
    machine: int | None = None
    endpoint: str = ""
    restarts: int | None = None
    name: str = ""
    is_rendezvous_host: bool | None = None
    launcher: str = Launcher.PROCESSES

    @property
    def is_needed(self) -> bool:
        """Whether other processes have to be started at all; one of several is never a launcher."""
        several = self.processes > 1 or self.most_machines > 1 or self.restarts is not None
        return (several or self.launcher == Launcher.RAY) and not worker.in_process_group()

    @property
    def may_look(self) -> bool:
        """Whether a process that trains in the folder cannot be one that this command belongs to."""
        return self.most_machines == 1 and not worker.in_process_group()
