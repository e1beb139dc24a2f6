"""Which of the processes of a run are known to have died."""

import os
import socket
from pathlib import Path
from typing import NamedTuple

from treadle.files.process_identity import process_start
from treadle.parallel.processes import Processes


class Place(NamedTuple):
    """Where a process is: the machine whose process numbers it counts by, its number, and when it began."""

    machine: str
    pid: int
    began: str | None


class PeerLiveness:
    """The processes of a run; every one of them must make this together.

    Args:
        processes: The processes.
    """

    def __init__(self, processes: Processes) -> None:
        self._own = Place(_machine(), os.getpid(), process_start(os.getpid()))
        self._places: list[Place] = processes.gather_objects(self._own)

    def may_live(self, rank: int) -> bool:
        """Whether the process of `rank` may still run; False is certain, and known of this machine only."""
        place = self._places[rank]
        return place.machine != self._own.machine or process_start(place.pid) == place.began


def _machine() -> str:
    """Return a name that processes share which see each other by number; containers on a machine may not."""
    try:
        space = os.readlink(Path("/proc/self/ns/pid"))
    except OSError:
        space = ""
    return f"{socket.gethostname()} {space}"
