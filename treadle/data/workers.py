"""Fetching workers that leave with the process they fetch for: not before it, and not after it."""

import atexit
import multiprocessing
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from multiprocessing import resource_tracker
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

from treadle.runs.preemption import SIGNALS

WATCH_MILLISECONDS = 500
"""How often a worker looks whether the process it fetches for is still there."""
WATCHES = hasattr(select, "poll") and hasattr(signal, "pthread_sigmask")
"""Whether workers are sent signals; on Windows they are ended, and torch itself watches who they fetch for."""


class Watch:
    """Goes first in each worker of a loader, and has it take no notice of signals while its parent lives.

    A terminal, a process group or a scheduler sends a signal to all processes at once. The one that trains takes it as
    a request to save and leave, and needs its workers to get there. The workers leave when it closes them, and within
    a moment when it is gone, even killed.

    Args:
        loader: The `DataLoader` that starts the workers.

    Attributes:
        initialise: The loader's own function for the start of a worker.
        start_method: How the workers are started: "fork", "spawn" or "forkserver".
    """

    def __init__(self, loader: Any) -> None:
        context: Any = getattr(loader, "multiprocessing_context", None) or multiprocessing.get_context()
        self.initialise: Callable[[int], object] | None = None
        # Plain shared memory: a lock could be taken by a worker that is killed.
        self._released = context.RawValue("b", 0)
        self.start_method: str = context.get_start_method()

    def hold(self) -> None:
        """Have the workers stay whatever signal comes."""
        self._released.value = 0

    def release(self) -> None:
        """Let the workers go when they are asked to: the run is over, or this process is."""
        self._released.value = 1

    def __call__(self, worker: int) -> None:
        """Begin to watch, in a worker."""
        process = multiprocessing.parent_process()
        # A server that forks for another process is the parent of what it forks, and ends with that process.
        parent = os.getppid() if process is None or self.start_method == "forkserver" else process.pid
        if not WATCHES:
            for number in SIGNALS:
                signal.signal(number, _take_no_notice)
        else:
            self._begin_watch(parent)
        if self.initialise is not None:
            self.initialise(worker)

    def _begin_watch(self, parent: int | None) -> None:
        # Signals are read from a pipe, by a thread: the one that fetches may be in the middle of something long.
        received, sent = os.pipe()
        os.set_blocking(sent, False)
        signal.set_wakeup_fd(sent, warn_on_full_buffer=False)
        for number in SIGNALS:
            # A handler, and not SIG_IGN: what the data set starts itself must not inherit it.
            signal.signal(number, _take_no_notice)
            signal.siginterrupt(number, False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        threading.Thread(target=self._watch, args=(parent, received), name="treadle-watch", daemon=True).start()

    def _watch(self, parent: int | None, received: int) -> None:
        pipe = select.poll()
        pipe.register(received, select.POLLIN)
        while os.getppid() == parent:
            signalled = pipe.poll(WATCH_MILLISECONDS)
            if signalled and os.read(received, 64) and self._released.value:
                break
        os._exit(0)


def _take_no_notice(number: int, frame: FrameType | None) -> None:
    """Do nothing at all."""


@cache
def _watches() -> "WeakKeyDictionary[Any, Watch]":
    """Return the watches of the loaders that have workers; those that are left are released when the process ends."""
    watches: WeakKeyDictionary[Any, Watch] = WeakKeyDictionary()
    # Multiprocessing waits for its children then, having asked them to go with a signal.
    atexit.register(_release_all, watches)
    return watches


def _release_all(watches: "WeakKeyDictionary[Any, Watch]") -> None:
    for watch in watches.values():
        watch.release()


def begin(loader: Any) -> Iterator[Any]:
    """Return `iter(loader)`; workers that it starts take no notice of signals until they are released."""
    if not _has_workers(loader):
        return iter(loader)
    # One that keeps its workers from one run to the next keeps their watch.
    watch = _watches().get(loader) or Watch(loader)
    _watches()[loader] = watch
    watch.hold()
    watch.initialise = own = loader.worker_init_fn
    loader.worker_init_fn = watch
    try:
        with _signals_held_back(watch.start_method):
            return iter(loader)
    finally:
        loader.worker_init_fn, watch.initialise = own, None


def release(loader: Any) -> None:
    """Let the workers of `loader` go when they are asked to."""
    if _has_workers(loader) and loader in _watches():
        _watches()[loader].release()


def _has_workers(loader: Any) -> bool:
    return getattr(loader, "num_workers", 0) > 0 and hasattr(loader, "worker_init_fn")


@contextmanager
def _signals_held_back(start_method: str) -> Iterator[None]:
    """Have signals wait; a worker inherits that, and meets them when it is ready for them."""
    if start_method == "forkserver" or not WATCHES:
        # The server would have every process that it ever forks inherit it.
        yield
        return
    if start_method == "spawn":
        # Started by the first worker that needs it, the tracker would let them through again.
        resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
