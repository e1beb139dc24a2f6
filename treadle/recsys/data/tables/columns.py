"""Columns of a table as flat arrays: a value for each row, or a run of values."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from treadle.errors import DataError, did_you_mean
from treadle.recsys.enums import FeatureType
from treadle.recsys.optional import pyarrow

Array = np.ndarray[Any, Any]
MISSING = -1
"""The code of a token that is not there."""


@dataclass
class Column:
    """One field of a table.

    Attributes:
        kind: What it holds.
        values: A number for each value. Of tokens it is the code, a place in `tokens`, or -1 where there is none.
        offsets: Of sequences, where each row begins in `values`, and after the last row where it ends.
        tokens: Of tokens, the text of each code, as an Arrow array; None once the codes are ids.
    """

    kind: FeatureType
    values: Array
    offsets: Array | None = None
    tokens: Any = None

    def __len__(self) -> int:
        return len(self.values) if self.offsets is None else len(self.offsets) - 1

    @property
    def lengths(self) -> Array:
        """How many values each row has."""
        return np.ones(len(self), np.int64) if self.offsets is None else np.diff(self.offsets)

    def take(self, rows: Array) -> "Column":
        """Return the column with these rows, in this order."""
        if self.offsets is None:
            return replace(self, values=self.values[rows])
        lengths = self.lengths[rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        return replace(self, values=self.values[runs(self.offsets[rows], lengths)], offsets=offsets)

    def take_or_missing(self, rows: Array) -> "Column":
        """Return the column with these rows; -1 stands for a row in which nothing is known."""
        absent = rows < 0
        if self.offsets is not None:
            empty = replace(self, offsets=np.append(self.offsets, self.offsets[-1]))
            return empty.take(rows)
        if self.kind.is_token:
            return replace(self, values=np.where(absent, 0, np.append(self.values, 0)[rows]))
        return replace(self, values=np.where(absent, np.nan, np.append(self.values, 0)[rows]))

    def shortened(self, most: int) -> "Column":
        """Return a column of sequences with at most `most` values in each row: the first ones."""
        assert self.offsets is not None, "only sequences have a length"
        lengths = np.minimum(self.lengths, most)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        return replace(self, values=self.values[runs(self.offsets[:-1], lengths)], offsets=offsets)

    def padded(self, dtype: Any) -> Array:
        """Return sequences as a matrix, with zeros behind the shorter ones."""
        assert self.offsets is not None, "only sequences are padded"
        lengths = self.lengths
        width = int(lengths.max(initial=0))
        matrix = np.zeros((len(self), width, *self.values.shape[1:]), dtype)
        matrix[np.arange(width) < lengths[:, None]] = self.values
        return matrix


@dataclass
class Table:
    """Columns of equal length, by name.

    Attributes:
        name: What to call it in messages, such as `ml-100k.inter`.
        columns: The columns.
    """

    name: str
    columns: dict[str, Column] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 0

    def __contains__(self, column: object) -> bool:
        return column in self.columns

    def __getitem__(self, column: str) -> Column:
        if column not in self.columns:
            near = did_you_mean(column, self.columns) or f"; it has {list(self.columns)}"
            raise DataError(f"{self.name} has no column {column!r}{near}")
        return self.columns[column]

    def take(self, rows: Array) -> "Table":
        """Return the table with these rows, in this order."""
        return Table(self.name, {name: column.take(rows) for name, column in self.columns.items()})

    def keep(self, mask: Array) -> "Table":
        """Return the table with the rows that `mask` marks; itself if it marks all."""
        return self if mask.all() else self.take(np.flatnonzero(mask))


def runs(starts: Array, lengths: Array) -> Array:
    """Return the places of several runs, one after the other.

    >>> runs(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    return np.repeat(starts, lengths) + within_runs(lengths)


def within_runs(lengths: Array) -> Array:
    """Return, for each element of several runs, its place in its own run.

    >>> within_runs(np.array([2, 0, 3])).tolist()
    [0, 1, 0, 1, 2]
    """
    places: Array = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return places


def stacked(tables: list[Table], name: str) -> Table:
    """Return the rows of several tables with the same columns, one table after the other.

    Raises:
        DataError: Their columns differ.
    """
    first = tables[0]
    for other in tables[1:]:
        if list(other.columns) != list(first.columns):
            raise DataError(
                f"{other.name} has the columns {list(other.columns)}, but {first.name} has {list(first.columns)}; "
                "the parts of a data set need the same"
            )
    return Table(name, {key: _joined([table[key] for table in tables]) for key in first.columns})


def _joined(columns: list[Column]) -> Column:
    values = [column.values for column in columns]
    tokens = None
    if columns[0].kind.is_token:
        values, tokens = share_codes(columns)
    offsets = None
    if columns[0].offsets is not None:
        offsets = np.concatenate([[0], np.cumsum(np.concatenate([column.lengths for column in columns]))])
    return Column(columns[0].kind, np.concatenate(values), offsets, tokens)


def share_codes(columns: list[Column]) -> tuple[list[Array], Any]:
    """Return the codes of several columns of tokens in one numbering, and the tokens of that numbering.

    A token keeps the code of the first column that has it; new ones follow.
    """
    arrow = pyarrow()
    if len(columns) == 1:
        return [columns[0].values], columns[0].tokens
    together = arrow.chunked_array([column.tokens for column in columns])
    encoded = together.dictionary_encode().combine_chunks()
    places = encoded.indices.to_numpy()
    codes, start = [], 0
    for column in columns:
        # One more entry, so that -1, a missing token, finds itself at the end.
        table = np.append(places[start : start + len(column.tokens)], MISSING)
        codes.append(table[column.values])
        start += len(column.tokens)
    return codes, encoded.dictionary
