"""One run at a time in a place without locks: an object that says who trains there, renewed while that lasts.

A disk takes its lock back from a process that died. A bucket does not: whoever finds such an object waits until it has
not been renewed for some time, unless it can see that the process is gone. What decides in the end is looked at before
every checkpoint is made visible: a process that lost its place writes no further one.
"""

import json
import logging
import os
import platform
import threading
import time
import uuid
from typing import Any

from treadle.errors import CheckpointError, StorageError
from treadle.files.process_identity import machine, process_start
from treadle.files.storage import Storage

logger = logging.getLogger(__name__)

NAME = "lock.json"
RENEWED_EVERY = 15.0
"""Seconds between two signs of life."""
LAPSES_AFTER = 60.0
"""Seconds without one after which a process that cannot be seen is taken for dead."""
LOOKS_EVERY = 0.5


class Lease:
    """Holds a place while this process trains there.

    Args:
        storage: The place.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._owner = uuid.uuid4().hex
        self._signs = 0
        self._held = threading.Event()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def _content(self) -> bytes:
        self._signs += 1
        content = {
            "owner": self._owner,
            "pid": os.getpid(),
            "host": platform.node(),
            "machine": machine(),
            "started": process_start(os.getpid()) or "",
            "signs": self._signs,
            "time": time.time(),
        }
        return json.dumps(content, indent=1).encode()

    def _read(self) -> dict[str, Any] | None:
        """Return what is said of who trains here; None if nobody does."""
        try:
            content = json.loads(self._storage.read(NAME))
        except FileNotFoundError:
            return None
        except ValueError:
            return {}
        return content if isinstance(content, dict) else {}

    def take(self) -> None:
        """Hold the place from now on, having waited for the signs of life of whoever held it.

        Raises:
            CheckpointError: Another process trains there.
            StorageError: Nobody can tell at present.
        """
        while not self._storage.create(NAME, self._content()):
            found = self._read()
            if found is not None and not _is_gone(found) and self._shows_life(found):
                raise CheckpointError(self._in_use(found))
            # It may have come to its end meanwhile, and another one taken its place.
            if found is not None and self._read() == found:
                self._storage.remove(NAME)
        self._held.set()
        self._thread = threading.Thread(target=self._renew, name="treadle-run-lease", daemon=True)
        self._thread.start()

    def _shows_life(self, found: dict[str, Any]) -> bool:
        """Wait until somebody else's object changes, or is as old as that of a dead process."""
        deadline = time.monotonic() + LAPSES_AFTER
        logger.warning(
            "%s says that process %s on %s trains in it; waiting up to %d seconds for a sign of life",
            self._storage.address(NAME),
            found.get("pid"),
            found.get("host"),
            LAPSES_AFTER,
        )
        while time.monotonic() < deadline:
            time.sleep(min(LOOKS_EVERY, LAPSES_AFTER))
            now = self._read()
            if now is None:
                return False
            if now != found and now:
                found.update(now)
                return not _is_gone(now)
        logger.warning(
            "process %s on %s gave none, so this process takes over %s. If it still runs, it will stop at its next "
            "checkpoint",
            found.get("pid"),
            found.get("host"),
            self._storage.url,
        )
        return False

    def _in_use(self, found: dict[str, Any]) -> str:
        return (
            f"{self._storage.url} is in use: process {found.get('pid')} on {found.get('host')} trains in it; wait for "
            "its end, stop it, or choose another place"
        )

    def check(self) -> None:
        """Refuse to go on where another process has taken the place.

        Raises:
            CheckpointError: It has.
            StorageError: Nobody can tell at present.
        """
        found = self._read()
        if found is None or found.get("owner") != self._owner:
            who = "somebody removed its lock" if not found else f"process {found.get('pid')} on {found.get('host')} did"
            raise CheckpointError(
                f"this process no longer holds {self._storage.url}: it gave no sign of life for {LAPSES_AFTER:.0f} "
                f"seconds and another took its place, or its lock was removed ({who}); nothing more is written. Start "
                "it again when no other run is in that place"
            )

    def _renew(self) -> None:
        while not self._over.wait(RENEWED_EVERY):
            try:
                self.check()
                if not self._over.is_set():
                    self._storage.write(NAME, self._content())
            except StorageError as error:
                logger.warning("no sign of life could be given, which is tried again: %s", error)
            except CheckpointError:
                # The next checkpoint says so, where somebody listens.
                return

    def release(self) -> None:
        """Let go of the place.

        Raises:
            StorageError: The object cannot be removed now.
        """
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        if self._held.is_set():
            self._held.clear()
            found = self._read()
            if found is not None and found.get("owner") == self._owner:
                self._storage.remove(NAME)


def _is_gone(found: dict[str, Any]) -> bool:
    """Whether the process that is said to train can be seen to be dead: on this machine, or before it was restarted."""
    there, here = str(found.get("machine", "")), machine()
    if there.partition(":")[0] != here.partition(":")[0] or not there:
        return False
    began = process_start(int(found.get("pid", 0)))
    return there != here or began is None or began != found.get("started")
