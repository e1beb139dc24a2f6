"""Files of one row per iteration, which stay in order whatever is written when."""

import logging
import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any, Protocol, Self

from treadle.errors import ConfigError
from treadle.events import get_event_storage
from treadle.files.atomic_io import replace_file, sync_file
from treadle.writers.event_writer import EventWriter
from treadle.writers.unwritten import Rows, Unwritten

ITERATION = "iteration"
"""The name under which a row has its iteration."""

Row = dict[str, Any]


class RowForm(Protocol):
    """How rows are written down."""

    def plain(self, values: Row) -> Row:
        """Return `values` as this form can hold them."""

    def encode(self, row: Row) -> bytes:
        """Return a row as a line."""

    def decode(self, line: bytes) -> Row:
        """Return the row that a line is; a ValueError says that it is none."""

    def header(self) -> bytes:
        """Return the line before the rows; nothing if the form has none."""

    def take_header(self, line: bytes) -> bool:
        """Whether a first line is a header, which is then taken over."""

    def widened(self, row: Row) -> Self | None:
        """Return the form with room for `row`; None if this one has it."""


class RowFile:
    """A file with one row for each iteration that has values, in order and none twice.

    The file is open only while something is written, so that nothing has to be closed.

    Args:
        path: The file.
        make_form: Makes the form of an empty file, which says how rows are written down.

    Attributes:
        written: The last iteration that each name has a value of.
    """

    def __init__(self, path: Path, make_form: Callable[[], RowForm]) -> None:
        self._path = path
        self._make_form = make_form
        self._form = make_form()
        self.written: dict[str, int] = {}

    @property
    def last(self) -> int:
        """The iteration of the last row; -1 if there is none."""
        return self._iterations[-1] if self._iterations else -1

    def begin(self, last: int, written: int | None = None) -> None:
        """Find the rows of the file, made if it is not there, and cut off those after the iteration `last`.

        A row that a crash cut through is left out. If no iteration is kept, a file that is there is another run's,
        and gets another name.

        Args:
            last: The last iteration of the run that goes on here; below 0 if none does.
            written: The last row that the run had written when it was saved, if that is known: what came after was
                written because a process ended, and not because it was due.

        Raises:
            ConfigError: Another line than the last is no row, or rows are out of order.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if last < 0:
            self._move_aside()
        self._path.touch()
        self._scan()
        position = bisect_right(self._iterations, last if written is None else min(last, written))
        end = self._offsets[position] if position < len(self._offsets) else self._end
        os.truncate(self._path, end)
        self._scan()

    def begin_anew(self) -> None:
        """Begin an empty file in the place of one that was removed."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.touch()
        self._scan()

    def sync(self) -> None:
        """Force the rows out to the disk."""
        sync_file(self._path)

    def _move_aside(self) -> None:
        """Give a file with something in it another name, with the first number that is free behind it."""
        if not self._path.exists() or not self._path.stat().st_size:
            return
        number = 1
        while (free := self._path.with_name(f"{self._path.name}.{number}")).exists():
            number += 1
        self._path.rename(free)

    def put(self, rows: Rows) -> None:
        """Write rows, each at its place; one that is there already is added to.

        Raises:
            ConfigError: A metric has the name of the iteration.
        """
        for iteration, values in rows.items():
            if ITERATION in values:
                raise ConfigError(f"a metric is called {ITERATION!r}, as is the first value of a row; rename it")
            row = {**self._form.plain(values), ITERATION: iteration}
            position = bisect_left(self._iterations, iteration)
            after = self._read(position)
            if after and after[0][ITERATION] == iteration:
                row = {**after.pop(0), **row}
            if (wider := self._form.widened(row)) is None:
                self._replace(position, [row, *after])
            else:
                self._rewrite(wider, [*self._read(0)[:position], row, *after])
            self.written.update(dict.fromkeys(values, iteration))

    # Lines and where they begin ---------------------------------------------------------------------------

    def _scan(self) -> None:
        self._iterations: list[int] = []
        self._offsets: list[int] = []
        self._end = 0
        self.written = {}
        self._form = self._make_form()
        with self._path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if number == 1 and line.endswith(b"\n") and self._form.take_header(line):
                    self._end = len(line)
                elif (row := self._decoded(line)) is not None:
                    self._note(row, len(line))
                elif file.read(1):
                    raise ConfigError(
                        f"{self._path}, line {number}, is no row of metrics after the ones before it; move the file "
                        "away, or mend it"
                    )

    def _decoded(self, line: bytes) -> Row | None:
        """Return the row of a line; None if it is not whole, or not later than the row before."""
        try:
            row = self._form.decode(line)
        except ValueError:
            return None
        iteration = row.get(ITERATION)
        in_order = isinstance(iteration, int) and (not self._iterations or iteration > self._iterations[-1])
        return row if in_order and line.endswith(b"\n") else None

    def _note(self, row: Row, length: int) -> None:
        iteration = int(row[ITERATION])
        self._iterations.append(iteration)
        self._offsets.append(self._end)
        self._end += length
        self.written |= dict.fromkeys(row, iteration)

    def _read(self, position: int) -> list[Row]:
        """Return the rows from the one at `position` on."""
        if position >= len(self._offsets):
            return []
        return [self._form.decode(line) for line in self._bytes_from(self._offsets[position]).splitlines()]

    def _bytes_from(self, begin: int) -> bytes:
        with self._path.open("rb") as file:
            file.seek(begin)
            return file.read(self._end - begin)

    def _replace(self, position: int, rows: list[Row]) -> None:
        """Write `rows` in the place of all rows from the one at `position` on."""
        lines = [self._form.encode(row) for row in rows]
        begin = self._offsets[position] if position < len(self._offsets) else self._end
        header = self._form.header() if begin == 0 else b""
        # Written over before anything is cut off: a kill in between leaves the rows whole, or a torn last line.
        self._write(begin, header + b"".join(lines), instead_of=self._bytes_from(begin))
        del self._iterations[position:], self._offsets[position:]
        self._end = begin + len(header)
        for row, line in zip(rows, lines, strict=True):
            self._note(row, len(line))
        os.truncate(self._path, self._end)

    def _write(self, begin: int, data: bytes, *, instead_of: bytes) -> None:
        try:
            self._write_all(begin, data)
        except OSError:
            with suppress(OSError):
                self._write_all(begin, instead_of)
            raise

    def _write_all(self, begin: int, data: bytes) -> None:
        # Without a buffer: a row is written as a whole, or reported as not written.
        with FileIO(os.fspath(self._path), "r+") as file:
            file.seek(begin)
            while data:
                data = data[file.write(data) :]

    def _rewrite(self, form: RowForm, rows: list[Row]) -> None:
        """Put a file with another header and `rows` in the place of the old one."""
        data = form.header() + b"".join(map(form.encode, rows))
        replace_file(self._path, lambda path: path.write_bytes(data))
        self._scan()


# What the writers of files have in common


logger = logging.getLogger(__name__)


class RowWriter(EventWriter):
    """Writes one row for each iteration that has new values, the newest of each metric.

    Rows are in order and none is there twice: values that come later for an iteration go into its row, and a run
    that goes on from a checkpoint first cuts off the rows after it. A file of another run, which this one does not
    go on from, is kept with a number behind its name. Rows that cannot be written wait for the next time, so that
    a full disk stops no run.

    Args:
        path: The file.
        make_form: Makes the form of an empty file, which says how rows are written down.
        window_size: Over how many iterations the median is taken of metrics that are to be smoothed.
    """

    def __init__(self, path: str | os.PathLike[str], make_form: Callable[[], RowForm], window_size: int) -> None:
        self._path = Path(path)
        self._file = RowFile(self._path, make_form)
        self._unwritten = Unwritten(window_size)
        self._waiting: Rows = {}
        self._begun = False
        self._saved_last: int | None = None

    def write(self) -> None:
        """Write a row for each iteration with new values."""
        storage = get_event_storage()
        life = self._unwritten.new_life(storage)
        if life is not None:
            self._waiting = {}
            was_there = self._path.exists()
            self._file.begin(life.kept, self._saved_last)
            self._tell_of_gap(life.kept, was_there=was_there)
            self._begun, self._saved_last = True, None
        for iteration, values in self._unwritten.take(storage, self._file.written).items():
            self._waiting[iteration] = self._waiting.get(iteration, {}) | values
        self._put_waiting()

    def close(self) -> None:
        """Force the rows out to the disk."""
        if self._begun:
            self._put_waiting()
            if self._waiting:
                logger.warning("%s lacks the rows of the iterations %s", self._path, sorted(self._waiting))
            self._file.sync()

    def state_dict(self) -> dict[str, Any]:
        """Return which row is the last that was written."""
        if self._begun:
            return {"last": self._file.last}
        return {"last": -1 if self._saved_last is None else self._saved_last}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Have the rows cut off that were written after the run was saved, such as the last one of a run that left."""
        self._saved_last = int(state["last"])

    def _tell_of_gap(self, kept: int, *, was_there: bool) -> None:
        """Say where a run that goes on has no longer, or never had, the rows of before."""
        if self._saved_last is None and kept >= 0 and not was_there:
            logger.warning("there was no %s to continue: it has rows of after iteration %d only", self._path, kept)
        elif self._saved_last is not None and self._file.last < self._saved_last:
            logger.warning(
                "%s lacks rows that it had when the run was saved, after iteration %d and up to %d; the run continues "
                "without them",
                self._path,
                self._file.last,
                self._saved_last,
            )

    def _put_waiting(self) -> None:
        try:
            self._put()
        except FileNotFoundError:
            logger.warning("%s was removed during the run; it begins anew, without its earlier rows", self._path)
            self._file.begin_anew()
            self._put_waiting()
        except OSError as error:
            logger.warning("rows of metrics wait to be written to %s: %s", self._path, error)

    def _put(self) -> None:
        self._file.put(dict(sorted(self._waiting.items())))
        self._waiting = {}
