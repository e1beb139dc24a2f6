"""The lines of a run's metrics, one after the other: as many as there are, in little memory."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, overload

from treadle.files.bounded_io import UnreadableError, open_regular, parsed

Row = dict[str, Any]
WALL_TIME = "wall_time"
"""As in `treadle.events.names`, which would load torch: a list of runs is there at once."""
LONGEST = 2**20
"""Bytes of a line; what is longer was not written by a run."""
ENDLESS = 64 * LONGEST
"""Bytes after which the end of a line is looked for no longer: a file of holes may be larger than any disk."""
BLOCK = 2**17
"""Bytes that are read at a time."""
REMEMBERED = 256
"""Bytes before the place where reading stopped that must still be there for it to continue."""


class MetricLines:
    """Reads a file of metrics, and later what has been added since.

    Args:
        path: The file.

    Attributes:
        skipped: How many lines were left out, which no run has written so.
        problem: Why the file cannot be read at all; empty if it can.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.skipped, self.problem = 0, ""
        self._place, self._before = 0, b""

    def anew(self) -> "MetricLines":
        """Return what reads the file from its beginning."""
        return MetricLines(self._path)

    def is_outdated(self) -> bool:
        """Whether what was read is no longer there: the file is another one, or was cut."""
        try:
            with open_regular(self._path) as file:
                file.seek(self._place - len(self._before))
                return bool(file.read(len(self._before)) != self._before)
        except (OSError, UnreadableError):
            return self._place > 0

    def read(self, *, unfinished: bool = False) -> Iterator[list[Row]]:
        """Yield new lines, some at a time.

        Args:
            unfinished: Whether a last line without an end counts, too, if it is whole otherwise.
        """
        self.problem = ""
        try:
            with open_regular(self._path) as file:
                file.seek(self._place)
                yield from self._blocks(file, unfinished)
        except FileNotFoundError:
            return
        except UnreadableError as error:
            self.problem = str(error)
        except (OSError, ValueError) as error:
            self.problem = f"{self._path.name} cannot be read: {error}"

    def _blocks(self, file: Any, unfinished: bool) -> Iterator[list[Row]]:
        begun, too_long = b"", 0
        while block := file.read(BLOCK):
            *lines, rest = (begun + block).split(b"\n")
            taken = sum(map(len, lines)) + len(lines)
            if too_long and lines:
                del lines[0]
                self.skipped += 1
                too_long = 0
            if taken:
                self._advance(taken, (begun + block)[:taken])
            begun = rest
            if len(begun) > LONGEST:
                # Its end is looked for, and nothing of it is kept.
                self._advance(len(begun), begun)
                too_long += len(begun)
                begun = b""
                if too_long > ENDLESS:
                    raise UnreadableError(f"{self._path.name} has a line of more than {ENDLESS:,} bytes")
            rows = [row for row in map(self._row, lines) if row is not None]
            if rows:
                yield rows
        row = parsed(begun) if unfinished and begun else None
        if row is not None and _is_row(row):
            yield [row]

    def _advance(self, count: int, passed: bytes) -> None:
        self._place += count
        self._before = (self._before + passed[-REMEMBERED:])[-REMEMBERED:]

    def _row(self, line: bytes) -> Row | None:
        if not line.strip():
            return None
        row = parsed(line) if len(line) <= LONGEST else None
        if row is None or not _is_row(row):
            self.skipped += 1
            return None
        if WALL_TIME in row and not is_number(row[WALL_TIME]):
            del row[WALL_TIME]
        return row

    def told(self) -> list[str]:
        """Return in words what was left out."""
        lines = "1 line that is" if self.skipped == 1 else f"{self.skipped} lines that are"
        found = [f"{self._path.name} has {lines} no metrics of a step"] if self.skipped else []
        return found + ([self.problem] if self.problem else [])


class FileRows(Sequence[Row]):
    """The lines of a file of metrics, read anew whenever they are asked for.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def lines(self) -> MetricLines:
        """Return what reads them."""
        return MetricLines(self._path)

    def __iter__(self) -> Iterator[Row]:
        for rows in self.lines().read(unfinished=True):
            yield from rows

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @overload
    def __getitem__(self, place: int) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> list[Row]: ...

    def __getitem__(self, place: Any) -> Any:
        return list(self)[place]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


def is_number(value: Any) -> bool:
    """Whether a value is a finite number."""
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) < 2**1023  # more than a float can hold
    return isinstance(value, float) and math.isfinite(value)


def _is_row(row: Row) -> bool:
    """Whether a line is one of metrics: where it says its step, that is a whole number."""
    step = row.get("step", 0)
    return bool(row) and is_number(step) and step == int(step)
