"""Atomic files, as RecBole calls them: separated text whose header names and types every field."""

import io
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.errors import DataError, did_you_mean
from treadle.recsys.enums import FeatureType
from treadle.recsys.optional import pyarrow

if TYPE_CHECKING:
    from treadle.recsys.tables.reading import Reading

UNIT = "\x1f"
"""What takes the place of a separator of several characters, which Arrow's reader does not know."""


def read_text_table(
    path: Path, choose: Callable[[Iterable[str], str], list[str]], reading: "Reading"
) -> tuple[Any, dict[str, FeatureType]]:
    """Return the chosen columns of an atomic file, and what each of them holds.

    Args:
        path: The file; compressed if its name says so.
        choose: Says which of the fields to load.
        reading: How to read them.

    Raises:
        DataError: The file cannot be read, or its header is no header of an atomic file.
    """
    arrow = pyarrow()
    try:
        header = parse_header(_first_line(path, reading.encoding), reading.field_separator, path.name)
        chosen = choose(header, path.name)
        kinds = {name: header[name] for name in chosen}
        return (_read(path, list(header), kinds, reading) if kinds else None), kinds
    except (arrow.ArrowInvalid, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


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
        line = io.TextIOWrapper(io.BufferedReader(stream), encoding=encoding).readline().lstrip("\ufeff")
    if not line.strip():
        raise DataError(f"{path} is empty; its first line must name and type its fields")
    return line.rstrip("\r\n")


def _read(path: Path, names: list[str], kinds: dict[str, FeatureType], reading: "Reading") -> Any:
    arrow = pyarrow()
    types = {name: _arrow_type(kind) for name, kind in kinds.items()}
    if kinds.get(str(reading.time_field)) is not FeatureType.FLOAT:
        return _parse(path, names, types, reading)
    try:
        # Times are read as whole numbers where they are: 64-bit floats cannot hold nanoseconds.
        return _parse(path, names, {**types, str(reading.time_field): arrow.int64()}, reading)
    except arrow.ArrowInvalid:
        return _parse(path, names, types, reading)


def _arrow_type(kind: FeatureType) -> Any:
    arrow = pyarrow()
    if kind is FeatureType.TOKEN:
        return arrow.dictionary(arrow.int32(), arrow.string())
    return arrow.float64() if kind is FeatureType.FLOAT else arrow.string()


def _parse(path: Path, names: list[str], types: dict[str, Any], reading: "Reading") -> Any:
    csv = pyarrow().csv
    separator = reading.field_separator
    single = separator if len(separator) == 1 else UNIT
    source = str(path) if single == separator else _with_units(path, separator.encode(reading.encoding))
    if _has_header_only(path):
        return pyarrow().table({name: pyarrow().array([], kind) for name, kind in types.items()})
    return csv.read_csv(
        source,
        csv.ReadOptions(column_names=names, skip_rows=1, encoding=reading.encoding),
        # A title may hold a quote: in an atomic file it is a character like any other.
        csv.ParseOptions(delimiter=single, quote_char=False),
        csv.ConvertOptions(include_columns=list(types), column_types=types),
    )


def _has_header_only(path: Path) -> bool:
    with pyarrow().input_stream(str(path)) as stream:
        lines = io.BufferedReader(stream)
        lines.readline()
        return not lines.read(1 << 16).strip()


def _with_units(path: Path, separator: bytes) -> Any:
    with pyarrow().input_stream(str(path)) as stream:
        return io.BytesIO(stream.read().replace(separator, UNIT.encode()))
