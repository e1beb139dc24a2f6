"""Lines of text files that cannot be read: found one by one, once reading the whole has failed."""

import csv
import io
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from treadle.errors import ConfigError, DataError, did_you_mean
from treadle.recsys.enums import FeatureType
from treadle.recsys.optional import pyarrow
from treadle.recsys.tables.text_files import MISSING_NUMBERS

if TYPE_CHECKING:
    from treadle.recsys.tables.reading import Reading

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


def check_policy(policy: object) -> str:
    """Return what `on_bad_line` says.

    Raises:
        ConfigError: It is none of what there is.
    """
    if policy not in POLICIES:
        near = did_you_mean(str(policy), POLICIES) or f"; there are {list(POLICIES)}"
        raise ConfigError(f"on_bad_line={policy!r} does not exist{near}")
    return str(policy)


def good_lines(
    path: Path, layout: TextLayout, kinds: Mapping[str, FeatureType], reading: "Reading"
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
    fields: list[str], layout: TextLayout, kinds: Mapping[str, FeatureType], reading: "Reading"
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
