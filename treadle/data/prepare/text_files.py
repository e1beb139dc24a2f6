"""Files of text, cut into parts of about one size, each of which can be read by itself."""

import glob
import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treadle.errors import ConfigError, DataError, importing

SUFFIXES = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".jsonl.gz": "jsonl",
    ".parquet": "parquet",
    ".txt": "text",
    ".md": "text",
    ".text": "text",
}
"""What files hold, by their names."""
DOCUMENTS = ("file", "line")
"""What is a document in a plain text: all of a file, or each line."""
SKIPPED: str | None = None
"""What is yielded for a record that has no text."""


@dataclass(frozen=True)
class Part:
    """A piece of the input, which makes a token bin.

    Attributes:
        files: The files; several only where each is a document.
        kind: "jsonl", "parquet" or "text".
        begin: The first byte of the file, or the first row group; a line belongs to the part in which it begins.
        end: Where the part ends, and the next one begins.
        size: How much there is to read, in bytes, as far as it is known.
    """

    files: tuple[str, ...]
    kind: str
    begin: int
    end: int
    size: int


@dataclass(frozen=True)
class Reading:
    """How text is read.

    Attributes:
        key: The field of a JSON object, or the column of a table, that holds the text.
        document: What is a document in a plain text: "file" or "line".
        skip: Whether a record without text is left out; it is an error otherwise.
    """

    key: str = "text"
    document: str = "file"
    skip: bool = False


# Which files, and how they are cut


def find_files(inputs: Sequence[str | Path]) -> list[Path]:
    """Return the files that paths, folders and patterns name, each once, in the order of their names.

    Raises:
        ConfigError: A path names nothing.
        DataError: A folder has no text, or a file is of no known kind.
    """
    found: dict[Path, None] = {}
    for one in inputs:
        for path in sorted(_files_of(str(one))):
            found[path] = None
    if not found:
        raise ConfigError("no input was named; give files, folders or patterns of text")
    for path in found:
        kind_of(path)
    return sorted(found)


def _files_of(name: str) -> list[Path]:
    path = Path(name)
    if path.is_file():
        return [path]
    if path.is_dir():
        inside = [one for one in path.rglob("*") if one.is_file() and _suffix(one)]
        if not inside:
            raise DataError(f"the folder {path} has no file that ends in {', '.join(SUFFIXES)}")
        return inside
    matched = [Path(one) for one in glob.glob(name, recursive=True) if Path(one).is_file()]
    if not matched:
        raise ConfigError(f"there is no file, folder or match of {name}")
    return matched


def _suffix(path: Path) -> str | None:
    return next((one for one in SUFFIXES if path.name.lower().endswith(one)), None)


def kind_of(path: Path) -> str:
    """Return what a file holds.

    Raises:
        DataError: Its name does not say.
    """
    suffix = _suffix(path)
    if suffix is None:
        raise DataError(f"{path}: what it holds is not known; files end in {', '.join(SUFFIXES)}")
    return SUFFIXES[suffix]


def cut_files(files: Sequence[Path], reading: Reading, part_size: int) -> list[Part]:
    """Return the parts of files, of about `part_size` bytes each."""
    parts: list[Part] = []
    small: list[Path] = []
    for path in files:
        kind, size = kind_of(path), path.stat().st_size
        if kind == "text" and reading.document == "file":
            small.append(path)
            if sum(one.stat().st_size for one in small) >= part_size:
                parts.append(_together(small))
                small = []
            continue
        if kind == "parquet":
            parts += _row_groups(path, part_size)
        elif path.name.lower().endswith(".gz"):
            # What is packed by gzip can only be read from its start.
            parts.append(Part((str(path),), kind, 0, size, size))
        else:
            ends = [*range(part_size, size, part_size), size]
            parts += [Part((str(path),), kind, end - n, end, n) for end, n in zip(ends, _steps(ends), strict=True)]
    return [*parts, _together(small)] if small else parts


def _steps(ends: list[int]) -> list[int]:
    return [end - begin for begin, end in zip([0, *ends], ends, strict=False)]


def _together(files: list[Path]) -> Part:
    size = sum(one.stat().st_size for one in files)
    return Part(tuple(map(str, files)), "text", 0, size, size)


def _row_groups(path: Path, part_size: int) -> list[Part]:
    table = _table(path)
    parts: list[Part] = []
    begin = size = 0
    count = table.metadata.num_row_groups
    for group in range(count):
        size += table.metadata.row_group(group).total_byte_size
        if size >= part_size or group == count - 1:
            parts.append(Part((str(path),), "parquet", begin, group + 1, size))
            begin, size = group + 1, 0
    return parts


def _table(path: str | Path) -> Any:
    with importing("pyarrow", extra="data", user="Reading Parquet"):
        import pyarrow as arrow
        from pyarrow.parquet import ParquetFile
    try:
        return ParquetFile(path)
    except arrow.ArrowException as error:
        raise DataError(f"{path} is no Parquet file: {error}") from error


# Reading a part


def read_texts(part: Part, reading: Reading) -> Iterator[tuple[str | None, int]]:
    """Yield the documents of a part, and how many bytes were read for each; None for a record without text.

    Raises:
        DataError: A record has no text, and that is not to be skipped.
    """
    if part.kind == "parquet":
        yield from _read_table(part, reading)
    elif part.kind == "text" and reading.document == "file":
        for name in part.files:
            data = Path(name).read_bytes()
            yield _decoded(data, name, 0, reading), len(data)
    else:
        for line, offset in _lines(part):
            if not line.strip():
                continue
            if part.kind == "text":
                yield _decoded(line.rstrip(b"\r\n"), part.files[0], offset, reading), len(line)
            else:
                yield _from_json(line, part.files[0], offset, reading), len(line)


def _lines(part: Part) -> Iterator[tuple[bytes, int]]:
    """Yield the lines that begin in a part, and where."""
    name = part.files[0]
    if name.lower().endswith(".gz"):
        offset = 0
        try:
            with gzip.open(name, "rb") as file:
                for line in file:
                    yield line, offset
                    offset += len(line)
        except (EOFError, OSError, zlib.error) as error:
            raise DataError(f"{name} is damaged: {error}; make it again") from error
        return
    with open(name, "rb") as file:
        if part.begin:
            # The line that reaches into this part is the last one of the part before.
            file.seek(part.begin - 1)
            file.readline()
        offset = file.tell()
        while offset < part.end and (line := file.readline()):
            yield line, offset
            offset += len(line)


def _decoded(data: bytes, name: str, offset: int, reading: Reading) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        return _refuse(f"{_where(name, offset)}: it is no UTF-8: {error}", reading)


def _from_json(line: bytes, name: str, offset: int, reading: Reading) -> str | None:
    try:
        record = json.loads(line.strip())
    except json.JSONDecodeError as error:
        return _refuse(f"{_where(name, offset)}: it is no JSON: {error.msg}, character {error.colno}", reading)
    except UnicodeDecodeError as error:
        return _refuse(f"{_where(name, offset)}: it is no UTF-8: {error}", reading)
    text = record.get(reading.key) if isinstance(record, dict) else None
    if isinstance(text, str):
        return text
    held = f"the fields {sorted(record)}" if isinstance(record, dict) else f"a {type(record).__name__}"
    return _refuse(f"{_where(name, offset)}: it has no text under {reading.key!r}, but {held}", reading)


def _read_table(part: Part, reading: Reading) -> Iterator[tuple[str | None, int]]:
    name = part.files[0]
    table = _table(name)
    if reading.key not in table.schema_arrow.names:
        raise DataError(
            f"{name} has no column {reading.key!r}, but {table.schema_arrow.names}; name the one with the text"
        )
    number = sum(table.metadata.row_group(group).num_rows for group in range(part.begin))
    for group in range(part.begin, part.end):
        column = table.read_row_group(group, columns=[reading.key]).column(0)
        share = table.metadata.row_group(group).total_byte_size // max(1, len(column))
        for text in column.to_pylist():
            if isinstance(text, str):
                yield text, share
            else:
                said = f"{name}, row {number}: {reading.key} is a {type(text).__name__} and no text"
                yield _refuse(said, reading), share
            number += 1


def _where(name: str, offset: int) -> str:
    """Return the file and the line of an error; lines are counted only now."""
    if name.lower().endswith(".gz"):
        return f"{name}, byte {offset} of what is in it"
    with open(name, "rb") as file:
        number = 1
        while offset and (block := file.read(min(offset, 1 << 20))):
            number, offset = number + block.count(b"\n"), offset - len(block)
    return f"{name}, line {number}"


def _refuse(said: str, reading: Reading) -> str | None:
    """Return what stands for a record that is skipped, or refuse it."""
    if not reading.skip:
        raise DataError(f"{said}; mend it, or leave such records out with --skip-errors")
    return SKIPPED
