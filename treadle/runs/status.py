"""Who trains in a run's folder, and how that ended: `status.json`, and whether its lock is held.

Nothing here needs torch, so that a list of runs is there at once.
"""

import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from treadle.errors import CheckpointError
from treadle.files.bounded_io import NO_WAIT, UnreadableError, read_object
from treadle.files.file_lock import lock_file
from treadle.files.process_identity import machine, process_start
from treadle.runs.place import run_address

STATUS = "status.json"
LOCK = ".lock"

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
        machine: The machine since it was last started, as far as that is known.
        started: When the process was started, in the words of the system.
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
    machine: str = ""
    started: str = ""


def read_status(run: Path) -> RunStatus | None:
    """Return what is known of the run in a folder; None if it never said anything.

    A run that says it is running while no process holds its folder was killed.
    """
    status = recorded_status(run)
    if status is not None and status.state == RUNNING and not is_locked(run):
        return replace(status, state=KILLED, message="its process ended without a word")
    return status


def recorded_status(run: Path) -> RunStatus | None:
    """Return what the run in a folder last said of itself, whether that still holds or not."""
    try:
        content = read_object(run / STATUS)
    except UnreadableError:
        return None
    known = {name: value for name, value in content.items() if name in RunStatus.__dataclass_fields__}
    if isinstance(known.get("command"), list):
        known["command"] = tuple(map(str, known["command"]))
    kinds: dict[str, Any] = {name: type(value) for name, value in asdict(RunStatus("")).items()}
    kinds["since"] = (int, float)
    # What is of another kind was not written by a run.
    fits = known.get("state") and all(isinstance(value, kinds[name]) for name, value in known.items())
    return RunStatus(**known) if fits else None


def may_live(status: RunStatus) -> bool:
    """Whether the process that said this may still be there: on another machine nobody knows, here the system does."""
    if status.machine.partition(":")[0] != machine().partition(":")[0]:
        return True
    began = process_start(status.pid)
    return status.machine == machine() and began is not None and began == status.started


def trains_without_lock(status: RunStatus | None) -> bool:
    """Whether another process of this machine that said this still trains, though somebody removed its lock."""
    if status is None or status.state != RUNNING or status.pid == os.getpid():
        return False
    return status.machine == machine() and may_live(status)


def is_locked(run: Path) -> bool:
    """Whether a process trains in the folder now."""
    try:
        descriptor = os.open(run / LOCK, os.O_RDONLY | NO_WAIT)
    except OSError:
        return trains_without_lock(recorded_status(run))
    try:
        lock_file(descriptor, shared=True)
    except BlockingIOError:
        return True
    except OSError:
        # A file system without locks: there is only what the run says of itself.
        status = recorded_status(run)
        return status is not None and status.state == RUNNING and may_live(status)
    finally:
        os.close(descriptor)
    return trains_without_lock(recorded_status(run))


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


def write_status(run: Path, status: RunStatus) -> None:
    """Write what is to be known of the run in a folder."""
    temporary = run / f".{STATUS}"
    with suppress(OSError):  # a full disk stops no run for that
        temporary.write_text(json.dumps(asdict(status), indent=1), encoding="utf-8")
        os.replace(temporary, run / STATUS)


def in_use(run: Path) -> str:
    """Return, in words, who trains in a folder and what to do about it."""
    status = recorded_status(run)
    if status is None:
        who = "another process trains in it"
    elif status.pid == os.getpid() and status.machine == machine():
        who = "this process trains in it already"
    else:
        who = f"process {status.pid} on {status.host} trains in it"
    what = "wait for its end, stop it, or choose another folder"
    if status is not None and status.host != platform.node():
        what += f"; if it is gone for good and the lock is not, remove {run / LOCK} and {run / STATUS}"
    return f"{run_address(run)} is in use: {who}; {what}"
