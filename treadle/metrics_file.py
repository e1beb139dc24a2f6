"""The metrics of a run as lines of JSON: one per step that reported something, none twice, none missing."""

import json
import math
import os
import time
from pathlib import Path
from typing import Any

from treadle.errors import CheckpointError
from treadle.progress import Progress


class MetricsFile:
    """Appends to a file of JSON lines, and forgets what a resumed run is about to write again.

    The line of the current step is held back until the next step reports, so that everything a step reports
    stands in one line. Its place in the file and the line held back are part of every checkpoint.

    Args:
        path: The file.
        progress: Where the run is.
    """

    def __init__(self, path: Path, progress: Progress) -> None:
        self._path = path
        self._progress = progress
        self._row: dict[str, Any] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")

    def put(self, records: list[tuple[str, int, Any, str]]) -> None:
        """Take in the (name, step, value, kind) of what was just flushed."""
        for name, step, value, _ in records:
            if self._row and self._row["step"] != step:
                self._write_row()
            if not self._row:
                self._row = {"step": step, "epoch": self._progress.epoch, "time": time.time()}
            self._row[name] = plain_number(value)

    def _write_row(self) -> None:
        row, self._row = self._row, {}
        self._file.write(json.dumps(row, allow_nan=False).encode() + b"\n")
        self._file.flush()

    def truncate(self) -> None:
        """Begin a new file."""
        self._row = {}
        self._file.truncate(0)

    def sync(self) -> None:
        """Force the lines out to the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Write the line held back and close the file."""
        if self._file.closed:
            return
        if self._row:
            self._write_row()
        self.sync()
        self._file.close()

    def state_dict(self) -> dict[str, Any]:
        """Return the length of the file and the line held back."""
        self.sync()
        return {"length": self._path.stat().st_size, "row": dict(self._row)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Cut off what was written after `state` was taken.

        Raises:
            CheckpointError: The file is shorter than it was then.
        """
        length = int(state["length"])
        if self._path.stat().st_size < length:
            raise CheckpointError(
                f"{self._path} is shorter than when the checkpoint was written ({length} bytes); "
                "it was changed or lost, so restore it or start in another folder"
            )
        self._file.truncate(length)
        self._row = dict(state["row"])


def plain_number(value: Any) -> Any:
    """Return `value` as something every JSON reader takes; nan and infinities become words.

    >>> plain_number([1.5, float("nan")])
    [1.5, 'nan']
    """
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, (list, tuple)):
        return [plain_number(item) for item in value]
    if isinstance(value, dict):
        return {key: plain_number(item) for key, item in value.items()}
    return value if value is None or isinstance(value, (bool, int, float, str)) else float(value)
