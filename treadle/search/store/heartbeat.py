"""Who is searching: by that a search knows whether a trial that is said to be running still is.

A search has a random name. It says under it that it is alive, into the store, for others on any machine; and it holds
a lock on a file of that name, for others on the same one. The system gives the lock back when the process dies, so
they need not wait. Neither the name of a machine nor the number of a process decides: containers may share both.
"""

import os
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # not on Windows, where others wait for the silence of the heartbeat
    fcntl = None  # type: ignore[assignment]

BEAT_SECONDS = 10.0
"""How often a search says that it is alive, to those on other machines."""
GRACE_SECONDS = 35.0
"""How long a search on another machine may be silent before its trials are taken over."""
STALE_FILE_SECONDS = 7 * 86_400.0
"""After how long the file of a search that was killed is removed."""

ALIVE = "alive"
_here: set[str] = set()
"""The searches that are running in this process."""
_ended_here: set[str] = set()
"""Those that were."""


class Heartbeat:
    """One run of a search, from its beginning to its end.

    Args:
        say: Called with a name and a number to say that it is alive; None says nothing.
    """

    def __init__(self, say: Callable[[str, float], None] | None = None) -> None:
        self.identity = uuid.uuid4().hex
        self._say = say
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self._file: int | None = None

    @property
    def is_running(self) -> bool:
        """Whether the search is running."""
        return self.identity in _here

    def owner(self) -> dict[str, Any]:
        """Return, as plain data, who this is; the process is said for people only."""
        return {"id": self.identity, "pid": os.getpid()}

    def __enter__(self) -> "Heartbeat":
        _here.add(self.identity)
        if self._say is not None:
            self._file = _hold(self.identity)
            self._beat()
            self._thread = threading.Thread(target=self._keep_beating, name="treadle-search-alive", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()
        _here.discard(self.identity)
        _ended_here.add(self.identity)
        if self._file is not None:
            os.close(self._file)

    def _keep_beating(self) -> None:
        while not self._done.wait(BEAT_SECONDS):
            with suppress(Exception):  # whoever cannot say it now says it the next time
                self._beat()

    def _beat(self) -> None:
        assert self._say is not None
        self._say(f"{ALIVE}:{self.identity}", time.time())


@dataclass(frozen=True)
class LastBeat:
    """What another search has last said, and since when it has said nothing else."""

    beat: Any
    since: float
    more_than_once: bool = False


class OwnerWatch:
    """Tells, of others, whether they are still searching.

    Args:
        beats: Returns what others have last said, by their names.
        clock: The time, for tests.
    """

    def __init__(self, beats: Callable[[], Mapping[str, Any]], clock: Callable[[], float] = time.monotonic) -> None:
        self._beats, self._clock = beats, clock
        self._heard: dict[str, LastBeat] = {}

    def is_alive(self, owner: Mapping[str, Any]) -> bool | None:
        """Return whether a search is running: None if that cannot be known yet, and a later call will."""
        name = str(owner.get("id"))
        if name in _here or name in _ended_here:
            return name in _here
        held = _is_held(name)
        return held if held is not None else self._beats_on(name)

    def _beats_on(self, name: str) -> bool | None:
        beat, now = self._beats().get(f"{ALIVE}:{name}"), self._clock()
        heard = self._heard.setdefault(name, LastBeat(beat, now))
        if beat != heard.beat:
            self._heard[name] = LastBeat(beat, now, more_than_once=True)
            return True
        if now - heard.since >= GRACE_SECONDS:
            return False
        return True if heard.more_than_once else None


# The lock of a search, for others of the same machine ------------------------------------------------------------


def lease_folder() -> Path:
    """Return the folder with a file for each search of this user on this machine."""
    user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
    return Path(tempfile.gettempdir()) / f"treadle-searches-{user}"


def _hold(name: str) -> int | None:
    """Lock the file of a search; return its descriptor, or None where it cannot be had and beats must do."""
    if fcntl is None:
        return None
    folder = lease_folder()
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        _remove_stale(folder)
        file = os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o600)
        # Of a kind that a fork does not inherit: a worker that outlives its search must not speak for it.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return None
    return file


def _is_held(name: str) -> bool | None:
    """Whether the search of a name holds its lock; None if its file is not on this machine."""
    if fcntl is None or not name.isalnum():
        return None
    try:
        file = os.open(lease_folder() / name, os.O_RDWR)
    except OSError:
        return None
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(file)
    return False


def _remove_stale(folder: Path) -> None:
    for path in folder.iterdir():
        with suppress(OSError):
            is_old = time.time() - path.stat().st_mtime > STALE_FILE_SECONDS
            # To look at a lock of this process would give it back.
            if is_old and path.name not in _here and not _is_held(path.name):
                path.unlink()
