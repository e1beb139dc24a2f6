"""Who is searching: by that a search knows whether a trial that is said to be running still is."""

import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from treadle.files.process_identity import machine, process_start

BEAT_SECONDS = 10.0
"""How often a search says that it is alive, to those on other machines."""
GRACE_SECONDS = 35.0
"""How long a search on another machine may be silent before its trials are taken over."""

ALIVE = "alive"
_here: set[str] = set()
"""The searches that are running in this process."""


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

    def owner(self) -> dict[str, Any]:
        """Return, as plain data, who this is."""
        own = os.getpid()
        return {"id": self.identity, "machine": machine(), "pid": own, "started": process_start(own)}

    def __enter__(self) -> "Heartbeat":
        _here.add(self.identity)
        if self._say is not None:
            self._beat()
            self._thread = threading.Thread(target=self._go_on, name="treadle-search-alive", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()
        _here.discard(self.identity)

    def _go_on(self) -> None:
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
        if owner.get("machine") == machine():
            return _runs_here(owner)
        name = str(owner.get("id"))
        beat, now = self._beats().get(f"{ALIVE}:{name}"), self._clock()
        heard = self._heard.setdefault(name, LastBeat(beat, now))
        if beat != heard.beat:
            self._heard[name] = LastBeat(beat, now, more_than_once=True)
            return True
        if now - heard.since >= GRACE_SECONDS:
            return False
        return True if heard.more_than_once else None


def _runs_here(owner: Mapping[str, Any]) -> bool:
    number = int(owner.get("pid", -1))
    if number == os.getpid():
        return owner.get("id") in _here
    return process_start(number) is not None and process_start(number) == owner.get("started")
