"""Which of the processes of a run are known to have died."""

import os
import socket
from pathlib import Path
from typing import NamedTuple

from treadle.parallel.processes import Processes

TABLE = Path("/proc")


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
        self._own = Place(_machine(), os.getpid(), began(os.getpid()))
        self._places: list[Place] = processes.gather_objects(self._own)

    def may_live(self, rank: int) -> bool:
        """Whether the process of `rank` may still run; False is certain, and known of this machine only."""
        place = self._places[rank]
        return place.machine != self._own.machine or began(place.pid) == place.began


def began(pid: int) -> str | None:
    """Return when a process of this machine began, which no later one of its number shares; None if it has ended."""
    try:
        # What comes before the last bracket is its name, which may hold anything.
        state, *rest = (TABLE / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None if TABLE.joinpath("self").exists() else _began_elsewhere(pid)
    return None if state in "ZX" else rest[18]


def _began_elsewhere(pid: int) -> str | None:
    """Do without a process table."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return ""


def _machine() -> str:
    """Return a name that processes share which see each other by number; containers on a machine may not."""
    try:
        space = os.readlink(TABLE / "self" / "ns" / "pid")
    except OSError:
        space = ""
    return f"{socket.gethostname()} {space}"
