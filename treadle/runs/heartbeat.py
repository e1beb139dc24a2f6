"""The sign of life of a run: where it is, said whenever its scalars are brought to the host.

The lock of a run says whether its process is there; this says how far it is, and when that was last heard, also to
another machine that sees no lock. Nothing here needs torch.
"""

import json
import math
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from treadle.files.bounded_io import UnreadableError, read_object
from treadle.runs.metric_rows import is_number

HEARTBEAT = "heartbeat.json"
SELDOM = 2.0
"""Seconds between two signs of life: pages ask as often."""


class _Position(Protocol):
    @property
    def step(self) -> int: ...


@dataclass(frozen=True)
class Beat:
    """A sign of life.

    Attributes:
        time: When it was given, in seconds since 1970.
        step: The updates that were made by then.
    """

    time: float
    step: int


class Heartbeat:
    """Writes signs of life into the folder of a run, no more often than anybody looks.

    It is called where scalars were just read from the device and written to the disk, never within a step.

    Args:
        run: The folder.
        progress: Where the run is.
        every: Seconds between two signs of life.
    """

    def __init__(self, run: Path, progress: _Position, every: float = SELDOM) -> None:
        self._path, self._progress, self._every = run / HEARTBEAT, progress, every
        self._last = -math.inf
        with suppress(OSError):  # that of an earlier start, which may have been further
            self._path.unlink(missing_ok=True)

    def beat(self) -> None:
        """Say that the run is alive, unless that was said a moment ago; a full disk stops no run for that."""
        now = time.monotonic()
        if now - self._last < self._every:
            return
        self._last = now
        with suppress(OSError):
            self._path.write_text(json.dumps({"time": time.time(), "step": self._progress.step}), encoding="utf-8")


def read_heartbeat(run: Path) -> Beat | None:
    """Return the last sign of life of the run in a folder; None if there is none that can be read."""
    try:
        found = read_object(run / HEARTBEAT)
    except UnreadableError:
        return None
    moment: Any = found.get("time")
    step = found.get("step")
    if not is_number(moment) or type(step) is not int or step < 0:
        return None
    return Beat(float(moment), step)
