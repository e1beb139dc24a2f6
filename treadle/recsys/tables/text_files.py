"""Atomic files, as RecBole calls them: separated text whose header names and types every field."""

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.errors import DataError, did_you_mean
from treadle.recsys.enums import FeatureType
from treadle.recsys.optional import pyarrow

if TYPE_CHECKING:
    from treadle.recsys.tables.reading import Reading

Source = Path | io.BytesIO
"""A file, or the bytes of one."""
_MISSING = ["#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA"]
MISSING_NUMBERS = frozenset([*_MISSING, "NULL", "NaN", "None", "n/a", "nan", "null", ""])
"""What stands for a missing number in a text file; RecBole reads them so in columns of tokens, too."""
UNIT = "\x1f"
"""What takes the place of a separator of several characters, which Arrow's reader does not know."""


def read_header(path: Path, reading: "Reading") -> dict[str, FeatureType]:
    """Return the fields that the first line of an atomic file names, with their types.

    Raises:
        DataError: The file cannot be read, or its header is no header of an atomic file.
    """
    try:
        return parse_header(_first_line(path, reading.encoding), reading.field_separator, path.name)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _decoded(stream: Any, encoding: str) -> io.TextIOWrapper:
    """Return the text of a stream whose first line alone is wanted: what is wrong further on is told with its line."""
    return io.TextIOWrapper(io.BufferedReader(stream), encoding=encoding, errors="surrogateescape", newline=None)


def read_csv_header(path: Path, separator: str, encoding: str) -> list[str]:
    """Return the names in the first line of a CSV file.

    Raises:
        DataError: The file cannot be read, or has no line.
    """
    try:
        with opened(path) as stream:
            names = next(csv.reader(_decoded(stream, encoding), delimiter=separator), [])
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    if not names:
        raise DataError(f"{path} is empty; its first line must name its columns")
    return [names[0].lstrip("\ufeff"), *names[1:]]


def read_rows(source: Source, names: list[str], kinds: dict[str, FeatureType], reading: "Reading") -> Any:
    """Return the chosen columns of an atomic file.

    Args:
        source: The file, compressed if its name says so; or what is in it.
        names: All its columns.
        kinds: What those that are chosen hold.
        reading: How to read them.

    Raises:
        ArrowInvalid: A line cannot be read.
    """
    arrow = pyarrow()
    types = {name: _arrow_type(kind) for name, kind in kinds.items()}
    if kinds.get(str(reading.time_field)) is not FeatureType.FLOAT:
        return _parse(source, names, types, reading)
    try:
        # Times are read as whole numbers where they are: 64-bit floats cannot hold nanoseconds.
        return _parse(source, names, {**types, str(reading.time_field): arrow.int64()}, reading)
    except arrow.ArrowInvalid:
        return _parse(source, names, types, reading)


def parse_header(line: str, separator: str, name: str) -> dict[str, FeatureType]:
    """Return the fields of a header with their types.

    >>> parse_header("user_id:token\\trating:float", "\\t", "a.inter")["rating"]
    <FeatureType.FLOAT: 'float'>

    Raises:
        DataError: A field has no type, one that does not exist, or comes twice.
    """
    fields: dict[str, FeatureType] = {}
    kinds = [kind.value for kind in FeatureType]
    for part in line.split(separator):
        field, colon, kind = part.strip().rpartition(":")
        if not colon or not field:
            raise DataError(
                f"{name} begins with {line!r}, in which {part!r} has no type; write each field as name:type, "
                f"with one of {kinds}, and {separator!r} (field_separator) between them"
            )
        if any(f":{one}" in field for one in kinds):
            raise DataError(
                f"{name} begins with {line!r}, which field_separator={separator!r} does not divide into its fields"
            )
        if kind not in kinds:
            near = did_you_mean(kind, kinds) or f"; there are {kinds}"
            raise DataError(f"field {field!r} of {name} has the type {kind!r}, which does not exist{near}")
        if field in fields:
            raise DataError(f"{name} has two fields of the name {field!r}")
        fields[field] = FeatureType(kind)
    return fields


def _first_line(path: Path, encoding: str) -> str:
    with pyarrow().input_stream(str(path)) as stream:
        # A byte-order mark is no part of the first name.
        line = _decoded(stream, encoding).readline().lstrip("\ufeff")
    if not line.strip():
        raise DataError(f"{path} is empty; its first line must name and type its fields")
    return line.rstrip("\r\n")


def _arrow_type(kind: FeatureType) -> Any:
    arrow = pyarrow()
    if kind is FeatureType.TOKEN:
        return arrow.dictionary(arrow.int32(), arrow.string())
    return arrow.float64() if kind is FeatureType.FLOAT else arrow.string()


def _parse(source: Source, names: list[str], types: dict[str, Any], reading: "Reading") -> Any:
    arrow_csv = pyarrow().csv
    separator = reading.field_separator
    single = separator if len(separator) == 1 else UNIT
    if _has_header_only(source):
        return pyarrow().table({name: pyarrow().array([], kind) for name, kind in types.items()})
    with opened(source) as stream:
        text = stream if single == separator else _with_units(stream, separator.encode(reading.encoding))
        return arrow_csv.read_csv(
            text,
            arrow_csv.ReadOptions(column_names=names, skip_rows=1, encoding=reading.encoding),
            # A title may hold a quote: in an atomic file it is a character like any other.
            arrow_csv.ParseOptions(delimiter=single, quote_char=False),
            arrow_csv.ConvertOptions(
                include_columns=list(types), column_types=types, null_values=sorted(MISSING_NUMBERS)
            ),
        )


def opened(source: Source) -> Any:
    """Return a stream over a file, or over the bytes of one from their beginning."""
    return pyarrow().input_stream(str(source) if isinstance(source, Path) else io.BytesIO(source.getvalue()))


def _has_header_only(source: Source) -> bool:
    with opened(source) as stream:
        lines = io.BufferedReader(stream)
        lines.readline()
        return not lines.read(1 << 16).strip()


def _with_units(stream: Any, separator: bytes) -> Any:
    return io.BytesIO(stream.read().replace(separator, UNIT.encode()))
