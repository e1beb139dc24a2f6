"""The metrics of a run as lines of JSON: one per step that reported something, none twice, none missing."""

import json
import logging
import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from treadle.errors import CheckpointError
from treadle.events.names import WALL_TIME
from treadle.files.atomic_io import replace_file
from treadle.progress import Progress

logger = logging.getLogger(__name__)


class MetricsFile:
    """Appends to a file of JSON lines, and forgets what a resumed run is about to write again.

    The line of the current step is held back until the next step reports, so that everything a step reports
    stands in one line. Its place in the file and the line held back are part of every checkpoint. Lines that
    cannot be written wait, so that a full disk stops no step; it is the next checkpoint that fails by them.

    The lines are what people look at, and nothing that training needs: where they are lost, the run continues and says
    which.

    Args:
        path: The file.
        progress: Where the run is.
        tell: Called with a line for people.
    """

    def __init__(self, path: Path, progress: Progress, tell: Callable[[str], object] = logger.warning) -> None:
        self._path = path
        self._progress = progress
        self._tell = tell
        self._row: dict[str, Any] = {}
        self._waiting = b""
        self._told_of: int | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._open()
        except OSError as error:
            raise CheckpointError(f"the metrics of the run cannot be written: {error}") from error

    def _open(self) -> None:
        # Without a buffer: what the disk did not take stays in our hands. To be read, too, where its name is lost.
        self._file = self._path.open("a+b", buffering=0)
        self._length = self._size()

    def _size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

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
            written = self._file.write(self._waiting)
            self._waiting = self._waiting[written:]
            self._length += written

    def truncate(self) -> None:
        """Begin a new file.

        Raises:
            CheckpointError: It cannot be emptied.
        """
        self.load_state_dict({"length": 0, "row": {}})

    def sync(self) -> None:
        """Force the lines out to the disk; a file that was removed or replaced meanwhile is put back.

        Raises:
            CheckpointError: The disk does not take them.
        """
        try:
            self._write_waiting()
            self._put_back()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise CheckpointError(f"cannot write the metrics of the run to {self._path}: {error}") from error

    def _put_back(self) -> None:
        """Notice what others did to the file during the run."""
        size = self._size()
        if size < self._length:
            self._tell(
                f"{self._path} was cut off by somebody during the run: {self._length - size} bytes of earlier "
                "lines are missing from it"
            )
            self._length = size
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(self._file.fileno()), self._path.stat()):
                return
        lost = self._file
        lost.seek(0)
        # What was opened can still be read, whatever became of its name.
        replace_file(self._path, lambda room: room.write_bytes(lost.read()))
        self._open()
        lost.close()
        self._tell(f"{self._path} was removed or replaced during the run; all its lines were written again")

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
        """Return the length of the file and the line held back.

        Raises:
            CheckpointError: The disk does not take what was still to be written.
        """
        self.sync()
        return {"length": self._size(), "row": dict(self._row)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Cut off what was written after `state` was taken; of a file that is not the one of then, keep what fits.

        Raises:
            CheckpointError: The file cannot be cut, or the state is not one of this file.
        """
        length, row = int(state["length"]), dict(state["row"])
        if row and type(row.get("step")) is not int:
            raise CheckpointError(f"the state of the metrics holds back a line of step {row.get('step')!r}")
        json.dumps(row, allow_nan=False)
        try:
            if self._size() < length or (length and self._read(length - 1, 1) != b"\n"):
                self._keep_what_fits(length, row)
            else:
                self._file.truncate(length)
            self._length = self._size()
        except OSError as error:
            raise CheckpointError(f"cannot cut the metrics in {self._path}: {error}") from error
        self._row, self._waiting = row, b""

    def _read(self, start: int, size: int = -1) -> bytes:
        self._file.seek(start)
        return self._file.read(size) or b""

    def _keep_what_fits(self, length: int, row: dict[str, Any]) -> None:
        """Keep the lines of earlier steps, in order, and say that others are missing."""
        end, last, found = 0, -1, self._size()
        limit = row.get("step", self._progress.step + 1)
        for line in self._read(0).splitlines(keepends=True):
            step = _line_step(line)
            if step is None or not last < step < limit:
                break
            end, last = end + len(line), step
        self._file.truncate(end)
        if self._told_of == length:
            return  # a state is loaded more than once
        self._told_of = length
        lost = f"between the steps {last} and {limit}" if end else f"before step {limit}"
        self._tell(
            f"{self._path} is not what it was when the checkpoint was written ({found} bytes instead of {length}): the "
            f"run continues, and its curves lack what was reported {lost}"
        )


def _line_step(line: bytes) -> int | None:
    """Return the step that a whole line is of; None if it is no such line."""
    try:
        step = json.loads(line)["step"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return step if type(step) is int and line.endswith(b"\n") else None


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
