"""Writes metrics as lines of JSON."""

import json
import os
from typing import Self

from treadle.runs.metrics_file import plain_number
from treadle.writers.row_file import Row, RowWriter


class JSONWriter(RowWriter):
    """Writes one JSON object on a line for each iteration that has new values, its keys sorted.

    Numbers that are nan or infinite are written as the words "nan", "inf" and "-inf", so that every line is JSON.

    Args:
        json_file: The file.
        window_size: Over how many iterations the median is taken of metrics that are to be smoothed.
    """

    def __init__(self, json_file: str | os.PathLike[str], window_size: int = 20) -> None:
        super().__init__(json_file, JSONLines, window_size)


class JSONLines:
    """Rows as JSON objects, one on each line."""

    def plain(self, values: Row) -> Row:
        """Return `values` as JSON can hold them."""
        return {name: plain_number(value) for name, value in values.items()}

    def encode(self, row: Row) -> bytes:
        """Return a row as a line."""
        return json.dumps(self.plain(row), sort_keys=True, allow_nan=False).encode() + b"\n"

    def decode(self, line: bytes) -> Row:
        """Return the row that a line is; a ValueError says that it is none."""
        row = json.loads(line)
        if not isinstance(row, dict):
            raise ValueError(f"{line!r} is no object")
        return row

    def header(self) -> bytes:
        """Return nothing, for each row has its names."""
        return b""

    def take_header(self, line: bytes) -> bool:
        """Return False, for every line is a row."""
        return False

    def widened(self, row: Row) -> Self | None:
        """Return None, for every row has room."""
        return None
