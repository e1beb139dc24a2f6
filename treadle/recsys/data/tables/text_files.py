"""Atomic files, as RecBole calls them: separated text whose header names and types every field."""

import csv
import io
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from treadle.errors import DataError, did_you_mean
from treadle.recsys.data.tables.columns import within_runs
from treadle.recsys.enums import FeatureType
from treadle.recsys.optional import pyarrow

if TYPE_CHECKING:
    from treadle.recsys.data.tables.reader import ReadSettings

# Files of interactions without a header, as many papers publish them


LAYOUTS = ("atomic", "lists", "pairs")


def read_interactions(
    path: Path, layout: str, *, user: str, item: str, time: str | None, on_bad_line: str = "error"
) -> Any:
    """Return the interactions in a file of lines `user item item ...` ("lists") or `user item` ("pairs").

    Args:
        path: The file; compressed if its name says so.
        layout: "lists" or "pairs".
        user: What to call the users' column.
        item: What to call the items' column.
        time: What to call a column with the place of an interaction in the file, for layouts in the order of time;
            None for no such column.
        on_bad_line: Whether a line that is too short is an "error", or left out: "skip".

    Returns:
        An Arrow table.

    Raises:
        DataError: The file cannot be read, or a line is too short.
    """
    arrow = pyarrow()
    words, lengths = _words(path)
    starts = np.cumsum(lengths) - lengths
    if layout == "pairs":
        short = np.flatnonzero(lengths == 1) + 1
        if len(short) and on_bad_line == "error":
            raise DataError(
                f"line {short[0]} of {path} has fewer than two words; write `user item`, or set on_bad_line to 'skip' "
                "to leave such lines out"
            )
        if len(short):
            logger.warning("%d lines of %s have fewer than two words and are left out: %s", len(short), path, short[:5])
        counts = (lengths > 1).astype(np.int64)
    else:
        counts = np.maximum(lengths - 1, 0)
    first = np.repeat(starts, counts)
    places = first + 1 + within_runs(counts)
    columns = {user: words.take(arrow.array(first)), item: words.take(arrow.array(places))}
    if time is not None:
        columns[time] = arrow.array(np.arange(len(first)))
    return arrow.table(columns)


def _words(path: Path) -> tuple[Any, np.ndarray[Any, Any]]:
    """Return all words of a file, and how many each line has."""
    arrow = pyarrow()
    csv = arrow.csv
    try:
        lines = csv.read_csv(
            str(path),
            csv.ReadOptions(column_names=["line"], block_size=1 << 24),
            # Empty lines, which do not count, are kept so that others have their numbers.
            csv.ParseOptions(delimiter="\x1f", quote_char=False, ignore_empty_lines=False),
            csv.ConvertOptions(column_types={"line": arrow.string()}),
        )["line"]
    except (arrow.ArrowInvalid, OSError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    trimmed = arrow.compute.utf8_trim_whitespace(lines)
    split = arrow.compute.utf8_split_whitespace(trimmed)
    lengths: np.ndarray[Any, Any] = arrow.compute.list_value_length(split).to_numpy().astype(np.int64)
    # Arrow takes an empty line for one empty word.
    lengths[arrow.compute.equal(trimmed, "").to_numpy()] = 0
    words = arrow.compute.list_flatten(split)
    words = words.filter(arrow.compute.not_equal(words, ""))
    return words.combine_chunks().dictionary_encode(), lengths


Source = Path | io.BytesIO
"""A file, or the bytes of one."""
_MISSING = ["#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA"]
MISSING_NUMBERS = frozenset([*_MISSING, "NULL", "NaN", "None", "n/a", "nan", "null", ""])
"""What stands for a missing number in a text file; RecBole reads them so in columns of tokens, too."""
UNIT = "\x1f"
"""What takes the place of a separator of several characters, which Arrow's reader does not know."""


def read_header(path: Path, reading: "ReadSettings") -> dict[str, FeatureType]:
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


def read_rows(source: Source, names: list[str], kinds: dict[str, FeatureType], reading: "ReadSettings") -> Any:
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
        found = feature_type(kind, field, name)
        if field in fields:
            raise DataError(f"{name} has two fields of the name {field!r}")
        fields[field] = found
    return fields


def feature_type(text: str, column: str, where: str) -> FeatureType:
    """Return the type of that name.

    Raises:
        DataError: There is none.
    """
    kinds = [kind.value for kind in FeatureType]
    if text not in kinds:
        near = did_you_mean(text, kinds) or f"; there are {kinds}"
        raise DataError(f"field {column!r} of {where} has the type {text!r}, which does not exist{near}")
    return FeatureType(text)


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


def _parse(source: Source, names: list[str], types: dict[str, Any], reading: "ReadSettings") -> Any:
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


# Lines of text files that cannot be read: found one by one, once reading the whole has failed


logger = logging.getLogger(__name__)
POLICIES = ("error", "skip")
ESCAPED = "surrogateescape"
"""How bytes that are no text of the encoding are read here: as characters that no text has."""
NAMED = 5
"""How many lines that are left out the log names before it only counts."""


@dataclass(frozen=True)
class TextLayout:
    """How the lines of a text file are divided.

    Attributes:
        names: The columns, as the header has them.
        separator: What stands between them.
        quoted: Whether quotes can hold a separator, as in CSV.
    """

    names: list[str]
    separator: str
    quoted: bool = False

    def rows(self, text: io.TextIOBase) -> Iterator[tuple[int, str, list[str]]]:
        """Yield the number, the text and the fields of every line that is not empty, the header included."""
        if self.quoted:
            reader = csv.reader(text, delimiter=self.separator)
            first = 1
            for fields in reader:
                if fields:
                    yield first, _csv_line(fields, self.separator), fields
                first = reader.line_num + 1
            return
        for number, line in enumerate(text, start=1):
            plain = line.rstrip("\r\n")
            if plain:
                yield number, plain, plain.split(self.separator)


def good_lines(
    path: Path, layout: TextLayout, kinds: Mapping[str, FeatureType], reading: "ReadSettings"
) -> io.BytesIO | None:
    """Return a file without the lines that cannot be read; None if each of them can.

    Args:
        path: The file; compressed if its name says so.
        layout: How its lines are divided.
        kinds: What the columns that are loaded hold.
        reading: How they are read, and what `on_bad_line` says.

    Raises:
        DataError: There is such a line, and none is to be left out.
    """
    kept, bad = io.BytesIO(), []
    with pyarrow().input_stream(str(path)) as stream:
        text = io.TextIOWrapper(io.BufferedReader(stream), encoding=reading.encoding, errors=ESCAPED, newline="")
        for number, line, fields in layout.rows(text):
            wrong = None if not kept.tell() else _what_is_wrong(fields, layout, kinds, reading)
            if wrong is None:
                kept.write(f"{line}\n".encode(reading.encoding))
                continue
            if reading.on_bad_line == "error":
                raise DataError(
                    f"line {number} of {path}: {wrong}; mend the line, or set on_bad_line to 'skip' to leave such "
                    "lines out"
                )
            bad.append(f"line {number}: {wrong}")
    if not bad:
        return None
    more = f"; and {len(bad) - NAMED} more" if len(bad) > NAMED else ""
    logger.warning("%d lines of %s are left out: %s%s", len(bad), path, "; ".join(bad[:NAMED]), more)
    kept.seek(0)
    return kept


def _what_is_wrong(
    fields: list[str], layout: TextLayout, kinds: Mapping[str, FeatureType], reading: "ReadSettings"
) -> str | None:
    if any("\udc80" <= letter <= "\udcff" for value in fields for letter in value):
        return f"it holds bytes that are no {reading.encoding}, which encoding says"
    if len(fields) != len(layout.names):
        return f"it has {len(fields)} fields, and the header {len(layout.names)} ({', '.join(layout.names)})"
    for name, value in zip(layout.names, fields, strict=True):
        kind = kinds.get(name)
        if kind is None or kind.is_token or value in MISSING_NUMBERS | reading.missing:
            continue
        parts = value.split(reading.seq_separator) if kind.is_sequence else [value]
        wrong = next((part for part in parts if part and not _is_number(part)), None)
        if wrong is not None:
            return f"{wrong!r} in the column {name!r} is no number, as its type '{kind.value}' says"
    return None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def _csv_line(fields: list[str], separator: str) -> str:
    line = io.StringIO()
    csv.writer(line, delimiter=separator, lineterminator="").writerow(fields)
    return line.getvalue()
