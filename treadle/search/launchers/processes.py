"""A pool of worker processes, each of which does one trial after the other."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from treadle.search.launchers.base import Ended, Ending, Launcher, answer_report
from treadle.search.launchers.wire import ADDRESS, GONE, Connection, WorkerMessage, WorkerServer
from treadle.search.launchers.worker import PARENT, PATH
from treadle.search.trial.task import Task
from treadle.search.trial.trial import RunningTrial

# How worker processes are started on this machine, and what their end is called


WORKER = "treadle.search.launchers.worker"


class WorkerHandle(Protocol):
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
        # In a session of its own: Ctrl-C is for the search, which then ends its workers. Windows has groups instead.
        apart: dict[str, Any] = {"start_new_session": True}
        if sys.platform == "win32":
            apart = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
        self._process = subprocess.Popen(command, env={**os.environ, **environment}, **apart)

    def ended(self) -> str | None:
        """Return in words how it ended; None while it runs."""
        status = self._process.poll()
        return None if status is None else in_words(status)

    def kill(self) -> None:
        """End it, and all that it started."""
        if sys.platform == "win32":
            self._process.kill()
        else:
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


DYING_SECONDS = 5.0
"""How long a worker whose line broke may take to be gone, before it is killed."""


@dataclass
class WorkerSlot:
    """A place for a worker: the process, its line once it has called, and what it is doing."""

    name: str
    process: WorkerHandle
    line: Connection | None = None
    task: Task | None = None
    session: RunningTrial | None = None
    since: float = field(default_factory=time.monotonic)


class Processes(Launcher):
    """Keeps up to `workers` processes, and starts a new one where one has died.

    Args:
        workers: How many.
        ended: Called with each trial that has ended.
        timeout: Seconds that a trial may take; None is any number.
    """

    def __init__(self, workers: int, ended: Ended, *, timeout: float | None = None) -> None:
        super().__init__(workers, ended)
        self.timeout = timeout
        self.exchange = self.listen()
        self._slots: dict[str, WorkerSlot] = {}
        self._started = 0

    def listen(self) -> WorkerServer:
        """Return where workers call."""
        return WorkerServer()

    def spawn(self, name: str) -> WorkerHandle:
        """Start a worker."""
        environment = worker_environment(self.exchange.address(name), self.workers)
        return Process([sys.executable, "-m", WORKER], environment | device_environment(int(name)))

    @property
    def running(self) -> int:
        """How many trials are running."""
        return sum(slot.session is not None for slot in self._slots.values())

    def start(self, task: Task, session: RunningTrial) -> None:
        """Give a trial to a worker that is idle, or to a new one."""
        idle = [slot for slot in self._slots.values() if slot.session is None]
        slot = idle[0] if idle else self._new_slot()
        slot.task, slot.session = task, session
        self._hand_over(slot)

    def _new_slot(self) -> WorkerSlot:
        taken = {int(name) % self.workers for name in self._slots}
        place = next(number for number in range(self.workers) if number not in taken)
        name = str(self._started * self.workers + place)  # no name twice: what an earlier worker said is not this one's
        self._started += 1
        self._slots[name] = WorkerSlot(name, self.spawn(name))
        return self._slots[name]

    def wait(self, seconds: float) -> None:
        """Deal with the next message of a worker, or with one that has died or takes too long."""
        said = self.exchange.next(seconds)
        if said is not None:
            self._hear(said)
        for slot in list(self._slots.values()):
            if self._is_late(slot):
                self._lose(slot, "TimeoutError", f"the trial took longer than {self.timeout:g} seconds")
            elif slot.line is None and (how := slot.process.ended()) is not None:
                self._lose(slot, "WorkerError", f"the worker {how} before it could begin")

    def _hear(self, said: WorkerMessage) -> None:
        slot = self._slots.get(said.worker)
        if slot is None:
            return
        if said.message is GONE:
            self._lose(slot, "WorkerError", f"the worker {self._how_it_ended(slot)}")
        elif "ready" in said.message:
            slot.line = said.line
            self._hand_over(slot)
        elif "ended" in said.message:
            self._end(slot, Ending(said.message["ended"], said.message["error"]))
        elif slot.session is not None:
            self._send(slot, answer_report(slot.session, said.message))

    def _hand_over(self, slot: WorkerSlot) -> None:
        if slot.line is not None and slot.task is not None:
            slot.since = time.monotonic()
            self._send(slot, {"task": slot.task.encoded()})

    def _send(self, slot: WorkerSlot, message: dict[str, object]) -> None:
        if slot.line is not None:
            slot.line.send_if_there(message)

    def _end(self, slot: WorkerSlot, ending: Ending) -> None:
        session, slot.session, slot.task = slot.session, None, None
        if session is not None:
            self.ended(session, ending)

    def _lose(self, slot: WorkerSlot, kind: str, message: str) -> None:
        """Give a worker up; the trial that it was doing has failed."""
        del self._slots[slot.name]
        slot.process.kill()
        self._end(slot, Ending.failed(kind, message))

    def _how_it_ended(self, slot: WorkerSlot) -> str:
        deadline = time.monotonic() + DYING_SECONDS
        while (how := slot.process.ended()) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return how or "hung up"

    def _is_late(self, slot: WorkerSlot) -> bool:
        # A worker that is still loading its libraries has not begun the trial.
        at_work = slot.line is not None and slot.session is not None
        return self.timeout is not None and at_work and time.monotonic() - slot.since > self.timeout

    def close(self) -> None:
        """Say goodbye to idle workers, and end those that are at work."""
        for slot in self._slots.values():
            if slot.session is None:
                self._send(slot, {"task": None})
            else:
                slot.process.kill()
        for slot in self._slots.values():
            self._how_it_ended(slot)
            slot.process.kill()
        self._slots.clear()
        self.exchange.close()
