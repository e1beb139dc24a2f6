"""Writes metrics as a table of comma-separated values."""

import csv
import io
import os
from collections.abc import Sequence
from typing import Any, Self

from treadle.writers.row_file import ITERATION, Row, RowWriter
from treadle.writers.unwritten import numbers_in


class CSVWriter(RowWriter):
    """Writes a table with a row for each iteration that has new values and a column for each metric.

    A metric that first comes later gets a column behind the others, and the rows before it an empty cell. Lists and
    dicts of numbers take several columns.

    Args:
        csv_file: The file.
        window_size: Over how many iterations the median is taken of metrics that are to be smoothed.
    """

    def __init__(self, csv_file: str | os.PathLike[str], window_size: int = 20) -> None:
        super().__init__(csv_file, CSVTable, window_size)


class CSVTable:
    """Rows as lines of cells under a line of names."""

    def __init__(self, columns: Sequence[str] = (ITERATION,)) -> None:
        self._columns = list(columns)

    def plain(self, values: Row) -> Row:
        """Return the numbers in `values`, and its words without line breaks."""
        words = {name: " ".join(value.split()) for name, value in values.items() if isinstance(value, str)}
        return words | numbers_in(values)

    def encode(self, row: Row) -> bytes:
        """Return a row as a line."""
        return _line([row.get(name, "") for name in self._columns])

    def decode(self, line: bytes) -> Row:
        """Return the row that a line is; a ValueError says that it is none."""
        (cells,) = csv.reader([line.decode()])
        named = zip(self._columns, cells, strict=True)
        return {name: _value(cell) for name, cell in named if cell != ""}

    def header(self) -> bytes:
        """Return the names of the columns."""
        return _line(self._columns)

    def take_header(self, line: bytes) -> bool:
        """Whether a first line has the names of columns, which are then taken over."""
        (cells,) = csv.reader([line.decode()])
        if cells[:1] == [ITERATION]:
            self._columns = cells
        return cells[:1] == [ITERATION]

    def widened(self, row: Row) -> Self | None:
        """Return the table with columns for `row`; None if this one has them."""
        new = [name for name in row if name not in self._columns]
        return type(self)([*self._columns, *new]) if new else None


def _line(cells: list[Any]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode()


def _value(cell: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            continue
    return cell
