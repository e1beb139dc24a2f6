"""Who trains in a run's folder, and how that ended: `status.json`, and a lock that dies with its process.

Nothing here needs torch, so that a list of runs is there at once.
"""

import errno
import fcntl
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from treadle.credentials import without_passwords
from treadle.errors import CheckpointError
from treadle.leaving import PreemptedExit

STATUS = "status.json"
LOCK = ".lock"
PATIENCE = 10.0
"""Seconds that a run waits for a process that is just being killed, and still holds the folder."""

_held: set[Path] = set()
"""The folders that this process itself trains in."""

RUNNING, FINISHED, STOPPED, FAILED, KILLED = "running", "finished", "stopped", "failed", "killed"


@dataclass(frozen=True)
class RunStatus:
    """What is known of the last start of a run.

    Attributes:
        state: "running", "finished", "stopped" (asked to, and saved), "failed" (by an error) or "killed".
        message: Why it ended, in words.
        since: When that state began, in seconds since 1970.
        pid: The process that trained; with several, the first one.
        host: The machine it was on.
        folder: The working folder of the process.
        command: Its command line.
        processes: How many processes there were.
        processes_here: How many of them were on this machine.
    """

    state: str
    message: str = ""
    since: float = 0.0
    pid: int = 0
    host: str = ""
    folder: str = ""
    command: tuple[str, ...] = ()
    processes: int = 1
    processes_here: int = 1


def read_status(run: Path) -> RunStatus | None:
    """Return what is known of the run in a folder; None if it never said anything.

    A run that says it is running while no process holds its folder was killed.
    """
    try:
        content: Any = json.loads((run / STATUS).read_text(encoding="utf-8"))
        known = {name: value for name, value in content.items() if name in RunStatus.__dataclass_fields__}
        known["command"] = tuple(known.get("command", ()))
        status = RunStatus(**known)
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    if status.state == RUNNING and not is_occupied(run):
        return RunStatus(**{**asdict(status), "state": KILLED, "message": "its process ended without a word"})
    return status


def is_occupied(run: Path) -> bool:
    """Whether a process trains in the folder now."""
    if run.resolve() in _held:
        return True  # to look would give it away: a process loses its lock when it closes the file, however often open
    try:
        file = (run / LOCK).open()
    except OSError:
        return False
    with file:
        try:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno in (errno.EACCES, errno.EAGAIN)
    return False


@contextmanager
def made(run: Path) -> Iterator[None]:
    """Make the folder of a run for the block to write into.

    Raises:
        CheckpointError: It cannot be made, or the block cannot write into it.
    """
    try:
        run.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise CheckpointError(f"the run folder {run} cannot be written: {error}; choose another folder") from error


class Occupation:
    """Holds the folder of a run while this process trains in it, and notes how that ended.

    The lock is one that a forked worker does not inherit, and that the kernel takes back from a process that was
    killed.

    Args:
        run: The folder.
        processes: How many processes train.
        processes_here: How many of them on this machine.

    Raises:
        CheckpointError: Another process trains in the folder, or it cannot be written.
    """

    def __init__(self, run: Path, *, processes: int = 1, processes_here: int = 1) -> None:
        self._run = run
        with made(run):
            self._file = (run / LOCK).open("a+")
        try:
            self._lock(time.monotonic() + PATIENCE)
        except BaseException:
            self._file.close()
            raise
        self._status = RunStatus(
            RUNNING,
            since=time.time(),
            pid=os.getpid(),
            host=platform.node(),
            folder=os.getcwd(),
            command=tuple(without_passwords(argument) for argument in sys.argv),
            processes=processes,
            processes_here=processes_here,
        )
        _held.add(run.resolve())
        self._write(self._status)

    def _lock(self, deadline: float) -> None:
        while True:
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EAGAIN):
                    return  # a file system without locks: better an unguarded run than none
                if time.monotonic() > deadline:
                    raise CheckpointError(in_use(self._run)) from error
                time.sleep(0.05)
                continue
            return

    def end(self, state: str, message: str = "") -> None:
        """Note how the run ended, and let go of the folder."""
        self._write(RunStatus(**{**asdict(self._status), "state": state, "message": message, "since": time.time()}))
        _held.discard(self._run.resolve())
        self._file.close()

    def _write(self, status: RunStatus) -> None:
        temporary = self._run / f".{STATUS}"
        with suppress(OSError):  # a full disk stops no run for that
            temporary.write_text(json.dumps(asdict(status), indent=1), encoding="utf-8")
            os.replace(temporary, self._run / STATUS)


def require_free(run: Path) -> None:
    """Refuse a folder in which another process trains, having waited a little for one that is being killed.

    Raises:
        CheckpointError: A process trains in it.
    """
    deadline = time.monotonic() + PATIENCE
    while is_occupied(run):
        if time.monotonic() > deadline:
            raise CheckpointError(in_use(run))
        time.sleep(0.05)


def in_use(run: Path) -> str:
    """Return, in words, who trains in a folder and what to do about it."""
    status = read_status(run)
    who = "another process" if status is None else f"process {status.pid} on {status.host}"
    return f"{run} is in use: {who} trains in it; wait for its end, stop it, or choose another folder"


@contextmanager
def ended(holder: Occupation | None, is_done: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Note how the block ended in the folder that `holder` holds; nothing on a process that holds none.

    Args:
        holder: What holds the folder.
        is_done: Whether the run came to its end, asked after the block; otherwise it was stopped.
    """
    try:
        yield
    except BaseException as error:
        if holder is not None:
            left = isinstance(error, (PreemptedExit, KeyboardInterrupt))
            holder.end(STOPPED if left else FAILED, str(error) if left else f"{type(error).__name__}: {error}")
        raise
    if holder is not None:
        holder.end(FINISHED if is_done() else STOPPED)
