"""One run at a time in a folder: the lock that every door takes, and gives back whatever happens.

Nothing here needs torch, so that a folder in use is refused at once.
"""

import logging
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from treadle.errors import CheckpointError, ConfigError
from treadle.files.bounded_io import NO_WAIT, without_passwords
from treadle.files.file_lock import lock_file
from treadle.files.process_identity import machine, process_start
from treadle.runs.place import find_mirror
from treadle.runs.preemption import PreemptedExit
from treadle.runs.status import (
    FAILED,
    FINISHED,
    LOCK,
    RUNNING,
    STOPPED,
    RunStatus,
    in_use,
    is_locked,
    made,
    may_live,
    recorded_status,
    trains_without_lock,
    write_status,
)

if TYPE_CHECKING:
    from treadle.parallel.processes import Processes
    from treadle.runs.mirror import RunMirror

logger = logging.getLogger(__name__)

PATIENCE = 10.0
"""Seconds that a run waits for a process that is just being killed, and still holds the folder."""

_held: dict[Path, "RunLock"] = {}
"""The folders that this process itself trains in."""
_told_children: list[bool] = []


class RunLock:
    """Holds the folder of a run while this process trains in it, and notes in `status.json` how that ended.

    The system takes the lock back from a process that was killed, and a reboot leaves none. A forked process does not
    share it, and other files of the folder may be opened and closed at will. Where the file system has no locks, who
    is said in `status.json` to train there is asked for instead.

    Args:
        run: The folder.
        processes: How many processes train.
        processes_here: How many of them on this machine.
        encloses: Whether a loop that this thread starts meanwhile belongs to the same run.

    Raises:
        CheckpointError: Another process trains in the folder, or it cannot be written.
    """

    def __init__(self, run: Path, *, processes: int = 1, processes_here: int = 1, encloses: bool = False) -> None:
        self._run = run
        self._descriptor: int | None = None
        self._writer: threading.Thread | None = None
        self._thread = threading.get_ident()
        self._has_room = encloses
        self._before = recorded_status(run)
        self._has_begun = False
        self._unsaved = ""
        self._afterwards: list[Callable[[], object]] = []
        self._take(time.monotonic() + PATIENCE)
        self._mirror = find_mirror(run)
        if self._mirror is not None:
            self._open_mirror(self._mirror)
        _tell_children()
        _held[run.resolve()] = self
        self._status = RunStatus(
            RUNNING,
            since=time.time(),
            pid=os.getpid(),
            host=platform.node(),
            folder=os.getcwd(),
            command=tuple(without_passwords(argument) for argument in sys.argv),
            processes=processes,
            processes_here=processes_here,
            machine=machine(),
            started=process_start(os.getpid()) or "",
        )
        write_status(run, self._status)
        if self._mirror is not None:
            self._show_status(self._mirror)

    def _open_mirror(self, mirror: "RunMirror") -> None:
        """Take the place where the run is kept, too, and learn how it ended there."""
        try:
            mirror.open()
        except BaseException:
            self.forget()
            raise
        self._before = recorded_status(self._run)

    def _show_status(self, mirror: "RunMirror") -> None:
        """Say where the run is kept that somebody trains there."""
        try:
            mirror.push()
        except BaseException:
            self._release()
            raise

    def _take(self, deadline: float) -> None:
        while (problem := self._try()) is not None:
            own = _held.get(self._run.resolve())
            if time.monotonic() > deadline or (own is not None and own._thread == self._thread and not own._writer):
                raise CheckpointError(problem)
            time.sleep(0.05)

    def _try(self) -> str | None:
        """Take the lock; return, in words, why it cannot be taken now."""
        if self._run.resolve() in _held:
            return in_use(self._run)
        with made(self._run):
            descriptor = os.open(self._run / LOCK, os.O_RDWR | os.O_CREAT | NO_WAIT, 0o666)
        try:
            problem = self._lock(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        if problem is not None:
            os.close(descriptor)
        else:
            self._descriptor = descriptor
        return problem

    def _lock(self, descriptor: int) -> str | None:
        before = recorded_status(self._run)
        unfinished = before is not None and before.state == RUNNING
        try:
            lock_file(descriptor)
        except BlockingIOError:
            return in_use(self._run)
        except OSError as error:
            if before is not None and unfinished and may_live(before):
                return in_use(self._run)
            logger.warning(
                "%s is on a file system without locks (%s): start no second run in it from another machine",
                self._run,
                error.strerror,
            )
            return None
        if not _is_still(descriptor, self._run / LOCK) or trains_without_lock(before):
            return in_use(self._run)
        if before is not None and unfinished and before.host != platform.node():
            logger.warning(
                "process %d on %s trained in %s and never said that it ended; its lock is gone, so this process takes "
                "over. If it still runs, stop one of the two",
                before.pid,
                before.host,
                self._run,
            )
        return None

    def note_begin(self) -> None:
        """Take note that the run was found to be in order and has begun: from now on how it ends is its status."""
        self._has_begun = True

    def note_unsaved(self, message: str) -> None:
        """Take note that the end of the run is not in its folder, which is then no finished one."""
        self._unsaved = message

    def done(self, state: str) -> None:
        """Note that the run ended without an error."""
        self.end(FAILED if self._unsaved else state, self._unsaved)

    def hold_for(self, writer: threading.Thread) -> None:
        """Keep the folder until `writer` is done, even if the run ends before."""
        self._writer = writer

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Let a part of the run that holds the folder train in it."""
        self._has_room = False
        try:
            yield
        finally:
            self._has_room = True

    def may_join(self) -> bool:
        """Whether the caller is a part of the run that holds the folder, and the only one."""
        return self._thread == threading.get_ident() and self._has_room

    def afterwards(self, action: Callable[[], object]) -> None:
        """Have `action` called once it is noted how the run ended, and before the folder is let go of."""
        self._afterwards.append(action)

    def end(self, state: str, message: str = "") -> None:
        """Note how the run ended, and let go of the folder."""
        self._close(replace(self._status, state=state, message=message, since=time.time()))

    def _close(self, status: RunStatus) -> None:
        write_status(self._run, status)
        actions, self._afterwards = self._afterwards, []
        try:
            for action in actions:
                action()
        finally:
            self._let_go()

    def fail(self, message: str) -> None:
        """Note by what error the run ended; a run that was there before and was not gone on with stays what it was."""
        if self._has_begun or self._before is None:
            self.end(FAILED, message)
        else:
            self._close(self._before)

    def _let_go(self) -> None:
        if self._writer is not None and self._writer.is_alive():
            threading.Thread(target=self._release_after, args=(self._writer,), name="treadle-run-lock").start()
        else:
            self._release()

    def _release_after(self, writer: threading.Thread) -> None:
        writer.join()
        self._release()

    def _release(self) -> None:
        if self._mirror is not None:
            self._mirror.close()
        if _held.get(self._run.resolve()) is self:
            del _held[self._run.resolve()]
        self.forget()

    def forget(self) -> None:
        """Close the file of the lock; that lets go of the folder, but not if this is a child of who holds it."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with suppress(OSError):
                os.close(descriptor)


def _is_still(descriptor: int, path: Path) -> bool:
    """Whether the file that was locked is the one of that name: somebody may have removed it in between."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False


def _tell_children() -> None:
    """From now on have forked processes close the locks of this one, which they would hold for as long as they live."""
    if not _told_children and hasattr(os, "register_at_fork"):  # Windows has no forks
        _told_children.append(True)
        os.register_at_fork(after_in_child=_forget_all)


def _forget_all() -> None:
    for lock in _held.values():
        lock.forget()
    _held.clear()


def held_here(run: Path) -> RunLock | None:
    """Return the lock by which this process holds a folder; None if it does not."""
    return _held.get(run.resolve())


def require_free(run: Path) -> None:
    """Refuse a folder in which another process trains, having waited a little for one that is being killed.

    Raises:
        CheckpointError: A process trains in it.
    """
    deadline = time.monotonic() + PATIENCE
    while is_locked(run):
        if time.monotonic() > deadline:
            raise CheckpointError(in_use(run))
        time.sleep(0.05)


def require_free_for_all(run: Path, processes: "Processes") -> None:
    """Refuse a folder in which another run trains; every process of this one must come here.

    Raises:
        CheckpointError: A process trains in it; every process raises it.
    """
    problem = ""
    if processes.is_main:
        try:
            require_free(run)
        except CheckpointError as error:
            problem = str(error)
    _refuse_together(problem, processes)


def _refuse_together(problem: str, processes: "Processes") -> None:
    # Those that went on would wait for the first one.
    problem = processes.share(problem)
    if problem:
        raise CheckpointError(problem)


@contextmanager
def run_lock(
    folder: Path | None,
    processes: "Processes",
    is_done: Callable[[], bool] = lambda: True,
    *,
    encloses: bool = False,
) -> Iterator[None]:
    """Hold the folder of a run during the block, and note in it how the block ended; without a folder do nothing.

    The first process holds it for all of them. A door holds the folder around the loop that it has made, which then
    takes part in that.

    Args:
        folder: The folder.
        processes: The processes of the run.
        is_done: Whether the run came to its end, asked after the block; otherwise it was stopped.
        encloses: Whether a loop that is started in the block belongs to this run.

    Raises:
        CheckpointError: Another run trains in the folder; every process raises it.
    """
    if folder is None:
        yield
        return
    _require_shared(folder, processes)
    outer = held_here(folder)
    lock, problem = None, ""
    if processes.is_main and not (outer is not None and outer.may_join()):
        here = int(os.environ.get("LOCAL_WORLD_SIZE", processes.size))
        try:
            lock = RunLock(folder, processes=processes.size, processes_here=here, encloses=encloses)
        except CheckpointError as error:
            problem = str(error)
    _refuse_together(problem, processes)
    if lock is not None:
        with _noting_end(lock, is_done):
            yield
    elif processes.is_main and outer is not None:
        with outer.joined():
            yield
    else:
        yield


def _require_shared(folder: Path, processes: "Processes") -> None:
    mirror = find_mirror(folder)
    if mirror is not None and processes.distributed and not mirror.storage.shared:
        raise ConfigError(
            f"{mirror.storage.url} is seen by one process alone, and this run has {processes.size}; keep it in a "
            "folder or a bucket that all of them reach"
        )


@contextmanager
def _noting_end(lock: RunLock, is_done: Callable[[], bool]) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        left = isinstance(error, (PreemptedExit, KeyboardInterrupt))
        if left:
            lock.end(STOPPED, str(error))
        else:
            lock.fail(f"{type(error).__name__}: {error}")
        raise
    lock.done(FINISHED if is_done() else STOPPED)
