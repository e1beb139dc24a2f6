"""The metrics of a run as lines of JSON: one per step that reported something, none twice, none missing."""

import json
import logging
import math
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from treadle.errors import CheckpointError
from treadle.events.names import WALL_TIME
from treadle.progress import Progress

logger = logging.getLogger(__name__)


class MetricsFile:
    """Appends to a file of JSON lines, and forgets what a resumed run is about to write again.

    The line of the current step is held back until the next step reports, so that everything a step reports
    stands in one line. Its place in the file and the line held back are part of every checkpoint. Lines that
    cannot be written wait, so that a full disk stops no step; it is the next checkpoint that fails by them.

    Args:
        path: The file.
        progress: Where the run is.
    """

    def __init__(self, path: Path, progress: Progress) -> None:
        self._path = path
        self._progress = progress
        self._row: dict[str, Any] = {}
        self._waiting = b""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Without a buffer: what the disk did not take stays in our hands.
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise CheckpointError(f"the metrics of the run cannot be written: {error}") from error

    def put(self, records: list[tuple[str, int, Any, str]]) -> None:
        """Take in the (name, step, value, kind) of what was just flushed."""
        for name, step, value, _ in records:
            if self._row and self._row["step"] < step:
                # A value of an earlier step that comes late joins the present line: its own is written.
                self._write_row()
            if not self._row:
                self._row = {"step": step, "epoch": self._progress.epoch, WALL_TIME: time.time()}
            self._row[name] = plain_number(value)

    def _write_row(self) -> None:
        row, self._row = self._row, {}
        self._waiting += json.dumps(row, allow_nan=False, sort_keys=True).encode() + b"\n"
        with suppress(OSError):
            self._write_waiting()

    def _write_waiting(self) -> None:
        while self._waiting:
            self._waiting = self._waiting[self._file.write(self._waiting) :]

    def truncate(self) -> None:
        """Begin a new file.

        Raises:
            CheckpointError: It cannot be emptied.
        """
        self.load_state_dict({"length": 0, "row": {}})

    def sync(self) -> None:
        """Force the lines out to the disk.

        Raises:
            CheckpointError: The disk does not take them.
        """
        try:
            self._write_waiting()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise CheckpointError(f"cannot write the metrics of the run to {self._path}: {error}") from error

    def close(self) -> None:
        """Write the line held back and close the file; lines that the disk does not take are reported and lost."""
        if self._file.closed:
            return
        if self._row:
            self._write_row()
        try:
            self.sync()
        except CheckpointError as error:
            logger.warning("%s; the last lines are lost", error)
        self._file.close()

    def state_dict(self) -> dict[str, Any]:
        """Return the length of the file and the line held back."""
        self.sync()
        return {"length": self._path.stat().st_size, "row": dict(self._row)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Cut off what was written after `state` was taken.

        Raises:
            CheckpointError: The file is shorter than it was then, or cannot be cut.
        """
        length = int(state["length"])
        try:
            if self._path.stat().st_size < length:
                raise CheckpointError(
                    f"{self._path} is shorter than when the checkpoint was written ({length} bytes); "
                    "it was changed or lost, so restore it or start in another folder"
                )
            self._file.truncate(length)
        except OSError as error:
            raise CheckpointError(f"cannot cut the metrics in {self._path}: {error}") from error
        self._row, self._waiting = dict(state["row"]), b""


def plain_number(value: Any) -> Any:
    """Return `value` as something every JSON reader takes; nan and infinities become words.

    >>> plain_number([1.5, float("nan")])
    [1.5, 'nan']
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, (list, tuple)):
        return [plain_number(item) for item in value]
    if isinstance(value, dict):
        return {key: plain_number(item) for key, item in value.items()}
    return value if value is None or isinstance(value, (bool, int, float, str)) else float(value)
