"""Tables as pandas data frames and back, for data sets that leave out rows by a method of their own."""

from typing import Any

import numpy as np

from treadle.errors import ConfigError, MissingDependencyError
from treadle.recsys.enums import FeatureType
from treadle.recsys.optional import pyarrow
from treadle.recsys.tables.arrow_columns import column_of
from treadle.recsys.tables.columns import Column, Table


def frame_of(table: Table) -> Any:
    """Return a table as a data frame: tokens as text, missing ones as None; sequences as arrays.

    Raises:
        MissingDependencyError: pandas is not installed.
    """
    try:
        import pandas  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingDependencyError(
            "a data set with its own _data_filtering needs pandas; pip install pandas"
        ) from error
    return pandas.DataFrame({name: _values(column) for name, column in table.columns.items()})


def _values(column: Column) -> Any:
    values = column.values
    if column.kind.is_token:
        # One more entry, so that -1, a missing token, finds None at the end.
        values = np.array([*column.tokens.to_pylist(), None], dtype=object)[column.values]
    if column.offsets is None:
        return values
    rows = np.empty(len(column), dtype=object)
    rows[:] = np.split(values, column.offsets[1:-1]) if len(column) else []
    return rows


def table_of(frame: Any, name: str, kinds: dict[str, FeatureType]) -> Table:
    """Return a data frame as a table.

    Args:
        frame: The data frame.
        name: What to call it in messages.
        kinds: What each of its columns holds.

    Raises:
        ConfigError: A column has no type.
        DataError: A column holds something else than its type says.
    """
    table = Table(name)
    for column in frame.columns:
        if column not in kinds:
            raise ConfigError(
                f"_data_filtering added the column {column!r} to {name}; say what it holds: "
                f"self.set_field_property({column!r}, FeatureType.FLOAT, FeatureSource.INTERACTION, 1)"
            )
        table.columns[str(column)] = column_of(
            _arrow(frame[column], kinds[column]), kinds[column], name=f"field {column!r} of {name}"
        )
    return table


def _arrow(series: Any, kind: FeatureType) -> Any:
    arrow = pyarrow()
    if kind.is_sequence:
        each = arrow.string() if kind.is_token else arrow.float64()
        rows = [[str(one) for one in row] if kind.is_token else list(row) for row in series]
        return arrow.chunked_array([arrow.array(rows, arrow.list_(each))])
    if kind.is_token:
        missing = series.isna().to_numpy()
        texts = [None if gone else str(token) for token, gone in zip(series, missing, strict=True)]
        return arrow.chunked_array([arrow.array(texts, arrow.string())])
    return arrow.chunked_array([arrow.array(series.to_numpy())])
