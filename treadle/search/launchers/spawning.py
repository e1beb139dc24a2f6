"""How worker processes are started on this machine, and what their end is called."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from treadle.search.launchers.wire import ADDRESS
from treadle.search.worker import PARENT, PATH

WORKER = "treadle.search.worker"


class Spawned(Protocol):
    """A worker that was started."""

    def ended(self) -> str | None:
        """Return in words how it ended; None while it runs."""

    def kill(self) -> None:
        """End it, and all that it started."""


class Process:
    """A worker process and all processes that it starts.

    Args:
        command: Its command line.
        environment: What its environment has besides that of the search.
    """

    def __init__(self, command: Sequence[str], environment: dict[str, str]) -> None:
        # In a session of its own: Ctrl-C is for the search, which then ends its workers.
        self._process = subprocess.Popen(command, env={**os.environ, **environment}, start_new_session=True)

    def ended(self) -> str | None:
        """Return in words how it ended; None while it runs."""
        status = self._process.poll()
        return None if status is None else in_words(status)

    def kill(self) -> None:
        """End it, and all that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def worker_environment(address: str, workers: int) -> dict[str, str]:
    """Return what the environment of a worker must have.

    Args:
        address: Where the search listens.
        workers: How many workers share the cores.
    """
    found = {ADDRESS: address, PATH: json.dumps([os.path.abspath(path) for path in sys.path]), PARENT: str(os.getpid())}
    if "OMP_NUM_THREADS" not in os.environ:
        # Unless somebody chose otherwise, they share the cores instead of fighting for them.
        found["OMP_NUM_THREADS"] = str(max(1, _cores() // workers))
    return found


def device_environment(slot: int) -> dict[str, str]:
    """Return the environment that gives a worker a GPU of its own, in turn; empty where there is none."""
    import torch

    if not torch.cuda.is_available():
        return {}
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = given.split(",") if given else [str(number) for number in range(torch.cuda.device_count())]
    return {"CUDA_VISIBLE_DEVICES": devices[slot % len(devices)]}


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_words(status: int) -> str:
    """Return how a process ended.

    >>> in_words(-9), in_words(1)
    ('was killed by SIGKILL', 'ended with status 1')
    """
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
