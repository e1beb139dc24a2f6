"""From Arrow's columns to plain arrays."""

from typing import Any

import numpy as np

from treadle.errors import ConfigError, DataError
from treadle.recsys.data.tables.columns import MISSING, Column, Table
from treadle.recsys.enums import FeatureType
from treadle.recsys.optional import pandas, pyarrow


def to_column(
    given: Any, kind: FeatureType, *, name: str, separator: str = " ", missing: frozenset[str] = frozenset({""})
) -> Column:
    """Return an Arrow column as a column of `kind`.

    Args:
        given: A chunked array.
        kind: What it is to hold.
        name: What to call it in messages.
        separator: What stands between the values of a sequence that is text.
        missing: Texts that stand for a missing token, or a missing sequence.

    Raises:
        DataError: It holds values that cannot be of this kind.
    """
    try:
        if kind.is_sequence:
            return _sequences(given, kind, separator, missing)
        return _tokens(given, missing) if kind.is_token else _numbers(given)
    except pyarrow().ArrowInvalid as error:
        raise DataError(
            f"{name} does not hold what its type '{kind.value}' says: {error}{_first_bad_row(given)}"
        ) from error


def _first_bad_row(given: Any) -> str:
    """Return, in words, which row of a column of text holds the first that is no number."""
    arrow = pyarrow()
    if arrow.types.is_string(given.type) or arrow.types.is_large_string(given.type):
        for row, value in enumerate(given, start=1):
            try:
                arrow.compute.cast(value, arrow.float64())
            except arrow.ArrowInvalid:
                return f" (row {row})"
    return ""


def infer_type(given: Any) -> FeatureType:
    """Return what an Arrow type is taken for where nobody says: numbers are floats, everything else is tokens."""
    types = pyarrow().types
    if types.is_list(given) or types.is_large_list(given) or types.is_fixed_size_list(given):
        return FeatureType.FLOAT_SEQ if _is_numeric(given.value_type) else FeatureType.TOKEN_SEQ
    return FeatureType.FLOAT if _is_numeric(given) or types.is_temporal(given) else FeatureType.TOKEN


def is_boolean_type(given: Any) -> bool:
    """Return whether an Arrow type holds truth values."""
    return bool(pyarrow().types.is_boolean(given))


def _is_numeric(given: Any) -> bool:
    types = pyarrow().types
    return bool(types.is_integer(given) or types.is_floating(given) or types.is_decimal(given))


def _numbers(given: Any) -> Column:
    """Return numbers in 64 bit: integers as they are, all else as floats, nan where there is none."""
    arrow = pyarrow()
    if arrow.types.is_temporal(given.type) and not arrow.types.is_duration(given.type):
        given = given.cast(arrow.timestamp("us") if not arrow.types.is_timestamp(given.type) else given.type)
        given = given.cast(arrow.int64())
    elif not arrow.types.is_integer(given.type):
        given = given.cast(arrow.float64())
    if given.null_count:
        given = arrow.compute.fill_null(given.cast(arrow.float64()), float("nan"))
    wide = np.int64 if arrow.types.is_integer(given.type) else np.float64
    return Column(FeatureType.FLOAT, given.to_numpy().astype(wide, copy=False))


def _tokens(given: Any, missing: frozenset[str]) -> Column:
    """Return tokens as codes, with -1 for texts that stand for a missing one."""
    codes, tokens = _encoded(given)
    absent = _places(tokens, missing - {""})
    if len(absent):
        codes = np.where(np.isin(codes, absent), MISSING, codes)
    return Column(FeatureType.TOKEN, codes, tokens=tokens)


def _places(tokens: Any, words: frozenset[str]) -> Any:
    """Return where some words stand among tokens."""
    arrow = pyarrow()
    if not words:
        return np.empty(0, np.int64)
    found = arrow.compute.is_in(tokens, value_set=arrow.array(sorted(words), tokens.type))
    return np.flatnonzero(found.to_numpy(zero_copy_only=False))


def find_tokens(column: Column, words: frozenset[str]) -> list[str]:
    """Return which of some words are tokens of a column with one token a row."""
    return sorted(column.tokens.take(pyarrow().array(_places(column.tokens, words))).to_pylist())


def _encoded(given: Any) -> tuple[Any, Any]:
    """Return the code of each value, and the text of each code; empty text is a missing token."""
    arrow = pyarrow()
    if not arrow.types.is_dictionary(given.type):
        given = given.dictionary_encode()
    # Older versions of pyarrow make a chunked array of a list of arrays only.
    chunks = given.chunks if isinstance(given, arrow.ChunkedArray) else [given]
    given = arrow.chunked_array(chunks, given.type).unify_dictionaries().combine_chunks()
    if isinstance(given, arrow.ChunkedArray):  # no rows, no chunks
        given = arrow.array([], given.type)
    tokens = _as_text(given.dictionary)
    codes = arrow.compute.fill_null(given.indices.cast(arrow.int64()), MISSING).to_numpy(zero_copy_only=False)
    empty = arrow.compute.or_kleene(arrow.compute.equal(tokens, ""), tokens.is_null())
    absent = np.flatnonzero(arrow.compute.fill_null(empty, True).to_numpy(zero_copy_only=False))
    return np.where(np.isin(codes, absent), MISSING, codes) if len(absent) else codes, tokens


def _as_text(values: Any) -> Any:
    """Return values as text; a float that is whole as the integer it stands for."""
    arrow = pyarrow()
    if arrow.types.is_floating(values.type):
        whole = arrow.compute.equal(values, arrow.compute.floor(values))
        if bool(arrow.compute.all(arrow.compute.fill_null(whole, True)).as_py()):
            values = values.cast(arrow.int64())
    return values.cast(arrow.string())


def _sequences(given: Any, kind: FeatureType, separator: str, missing: frozenset[str]) -> Column:
    """Return runs of values; empty pieces of text between two separators are left out."""
    arrow = pyarrow()
    types = arrow.types
    if types.is_dictionary(given.type):
        given = given.cast(given.type.value_type)
    if types.is_string(given.type) or types.is_large_string(given.type):
        absent = arrow.compute.is_in(given, value_set=arrow.array(sorted(missing), given.type))
        given = arrow.compute.if_else(absent, "", arrow.compute.fill_null(given, ""))
        given = arrow.compute.split_pattern(given, separator)
    elif not (types.is_list(given.type) or types.is_large_list(given.type) or types.is_fixed_size_list(given.type)):
        given = arrow.compute.split_pattern(arrow.compute.fill_null(given.cast(arrow.string()), ""), separator)
    lengths = arrow.compute.fill_null(arrow.compute.list_value_length(given), 0).to_numpy().astype(np.int64)
    flat = arrow.compute.list_flatten(given)
    if types.is_string(flat.type) or types.is_large_string(flat.type):
        there = arrow.compute.not_equal(flat, "").to_numpy()
        flat = flat.filter(there)
        lengths = np.bincount(np.repeat(np.arange(len(lengths)), lengths)[there], minlength=len(lengths))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    if kind is FeatureType.TOKEN_SEQ:
        codes, tokens = _encoded(flat)
        return Column(kind, codes, offsets, tokens)
    return Column(kind, _numbers(flat.cast(arrow.float64())).values, offsets)


# Tables as pandas data frames and back, for data sets that leave out rows by a method of their own


def to_frame(table: Table) -> Any:
    """Return a table as a data frame: tokens as text, missing ones as None; sequences as arrays.

    Raises:
        MissingDependencyError: pandas is not installed.
    """
    library = pandas("a data set with its own _data_filtering")
    return library.DataFrame({name: _values(column) for name, column in table.columns.items()})


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


def from_frame(frame: Any, name: str, kinds: dict[str, FeatureType]) -> Table:
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
        table.columns[str(column)] = to_column(
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
