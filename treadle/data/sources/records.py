"""Records of files: where each begins, kept in an index beside the file, and what happens to a corrupt one."""

import json
import logging
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from treadle.errors import ConfigError, DataError, check_choice
from treadle.files.atomic_io import replace_file

logger = logging.getLogger(__name__)

ON_CORRUPT = ("raise", "skip")
MAGIC, VERSION = b"TRDLRECS", 1
FRONT = struct.Struct("<8sIII")

VERIFIED = 1 << 28
"""Up to so many bytes a column of an index is compared with its checksum at every start; more would take seconds."""

Columns = dict[str, Any]
"""Arrays of an index, by name."""


class CorruptRecordError(DataError):
    """A record of a file cannot be read; the message names the file and the record.

    Attributes:
        following: The first record behind it that may be whole; None is the next.
    """

    following: int | None = None


def found_files(path: str | Path | Sequence[str | Path], endings: tuple[str, ...], kind: str) -> list[Path]:
    """Return the files that a path names, or several: those of a folder, and of a pattern, in the order of their names.

    Raises:
        DataError: There is none.
    """
    if not isinstance(path, (str, Path)):
        found = [one for part in path for one in found_files(part, endings, kind)]
        if not found:
            raise DataError(f"{kind}([]): no file was named; give the path of a file or of a folder of files")
        return found
    place = Path(path)
    if place.is_file():
        return [place]
    if place.is_dir():
        found = sorted(one for one in place.iterdir() if one.name.endswith(endings) and one.is_file())
        if not found:
            raise DataError(f"{kind}: {place} has no file that ends in {' or '.join(endings)}")
        return found
    found = sorted(place.parent.glob(place.name))
    if not found:
        raise DataError(f"{kind}: {place} is not there; check the path, which is looked for from {Path.cwd()}")
    return found


def by_name(paths: Sequence[Path], marks: Sequence[str]) -> dict[str, str]:
    """Return marks of files by the names of these; where two have one name, by their paths.

    >>> by_name([Path("a/x"), Path("a/y")], ["1", "2"]), by_name([Path("a/x"), Path("b/x")], ["1", "2"])
    ({'x': '1', 'y': '2'}, {'a/x': '1', 'b/x': '2'})
    """
    names = [path.name for path in paths]
    return dict(zip(names if len(set(names)) == len(names) else map(str, paths), marks, strict=True))


# The index of a file ------------------------------------------------------------------------------------------


class MappedColumns(dict[str, Any]):
    """Arrays that are mapped from an index; another process maps them itself, and gets none of what they hold.

    Args:
        place: The index.
        listed: Name, type and length of each array.
        first: Where the first of them begins.
    """

    def __init__(self, place: Path, listed: list[list[Any]], first: int) -> None:
        super().__init__()
        self._made_by = place, listed, first
        for name, kind, length, _ in listed:
            values: Any = np.empty(0, kind) if not length else np.memmap(place, kind, "r", first, length)
            self[name] = values
            first += values.nbytes + -values.nbytes % 8

    def __reduce__(self) -> tuple[type["MappedColumns"], tuple[Path, list[list[Any]], int]]:
        return MappedColumns, self._made_by


@dataclass(frozen=True)
class RecordIndex:
    """Where the records of a file are.

    Attributes:
        facts: What the file is known by, in plain data.
        columns: Arrays, mapped from the index.
    """

    facts: Mapping[str, Any]
    columns: Columns


def index_of(
    path: Path, build: Callable[[Path], tuple[Columns, dict[str, Any]]], folder: str | Path | None = None
) -> RecordIndex:
    """Return the index of a file: the one that is kept beside it, or one that is built and kept now.

    An index is kept by the size and the time of its file, and by checksums of its own: one that does not fit, or was
    damaged, is built again. Of columns above 256 MB only the header is compared. It appears under its name only when it
    is whole.

    Args:
        path: The file.
        build: Reads the file and returns the columns of its index, and further facts.
        folder: Where indices are kept; None is beside the files.
    """
    status = path.stat()
    stamp = {"size": status.st_size, "time": status.st_mtime_ns, "build": build.__name__}
    place = (path.parent if folder is None else Path(folder)) / f".{path.name}.index"
    kept = _read_index(place, stamp)
    if kept is not None:
        return kept
    columns, facts = build(path)
    columns = {name: np.ascontiguousarray(values) for name, values in columns.items()}
    try:
        replace_file(place, lambda part: _write_index(part, columns, {**facts, **stamp}))
    except OSError as error:
        logger.info("the index of %s cannot be kept as %s (%s), and is built at every start", path, place, error)
        return RecordIndex({**facts, **stamp}, columns)
    return _read_index(place, stamp) or RecordIndex({**facts, **stamp}, columns)


def _write_index(place: Path, columns: Columns, facts: dict[str, Any]) -> None:
    listed = [[name, str(values.dtype), len(values), zlib.crc32(values)] for name, values in columns.items()]
    text = json.dumps({"facts": facts, "columns": listed}).encode()
    text += b" " * (-(FRONT.size + len(text)) % 8)
    with place.open("wb") as file:
        file.write(FRONT.pack(MAGIC, VERSION, len(text), zlib.crc32(text)))
        file.write(text)
        for values in columns.values():
            file.write(values.tobytes() + b"\0" * (-values.nbytes % 8))


def _read_index(place: Path, stamp: dict[str, Any]) -> RecordIndex | None:
    """Return an index that is whole and of this stamp; None for any other."""
    try:
        with place.open("rb") as file:
            magic, version, size, crc = FRONT.unpack(file.read(FRONT.size))
            text = file.read(size)
        if (magic, version, crc) != (MAGIC, VERSION, zlib.crc32(text)):
            return None
        header = json.loads(text)
        if any(header["facts"].get(key) != value for key, value in stamp.items()):
            return None
        columns = MappedColumns(place, header["columns"], FRONT.size + size)
        for name, _, _, crc in header["columns"]:
            if columns[name].nbytes <= VERIFIED and zlib.crc32(columns[name]) != crc:
                return None
        return RecordIndex(header["facts"], columns)
    except (OSError, ValueError, struct.error):
        return None


# Corrupt records ----------------------------------------------------------------------------------------------

NOTED = 1024
"""How many skipped records each process notes by their number, so that none is counted twice."""
PROCESSES = 64
IN_A_ROW = 1000
"""How many corrupt records may follow each other."""


class CorruptRecords:
    """What happens to records that cannot be read: an error, or the next one in their place, counted.

    The count is in memory that workers share, which is taken before they start.

    Args:
        on_corrupt: "raise" or "skip".
        owner: Whose records, for messages.

    Raises:
        ConfigError: It is neither.
    """

    def __init__(self, on_corrupt: str, owner: str) -> None:
        try:
            check_choice("on_corrupt", on_corrupt, ON_CORRUPT)
        except ConfigError as error:
            raise ConfigError(f"{owner}: {error}") from None
        self.skips = on_corrupt == "skip"
        self._noted: Tensor | None = None
        if self.skips:
            self._noted = torch.zeros(PROCESSES, 1 + NOTED, dtype=torch.int64)
            self._noted.share_memory_()  # type: ignore[no-untyped-call]

    @property
    def count(self) -> int:
        """How many records were skipped, in all workers; one that was met again is not counted again."""
        if self._noted is None:
            return 0
        numbers: set[int] = set()
        beyond = 0
        for row in self._noted.tolist():
            numbers.update(row[1 : 1 + min(row[0], NOTED)])
            beyond += max(0, row[0] - NOTED)
        return len(numbers) + beyond

    def read(self, index: int, length: int, read: Callable[[int], Any]) -> Any:
        """Return the record at `index`; where it is corrupt and may be skipped, the next that is not.

        Raises:
            CorruptRecordError: It is corrupt, and must not be skipped, or so are many in a row.
        """
        place = index
        for _ in range(min(length, IN_A_ROW)):
            try:
                return read(place)
            except CorruptRecordError as error:
                if not self.skips:
                    raise
                self._note(place, error)
                place = (place + 1 if error.following is None else error.following) % length
                last = error
        raise CorruptRecordError(f"{min(length, IN_A_ROW)} records in a row are corrupt; the last: {last}")

    def _note(self, index: int, error: Exception) -> None:
        assert self._noted is not None
        worker = get_worker_info()
        row = self._noted[0 if worker is None else 1 + worker.id % (PROCESSES - 1)]
        count = int(row[0])
        if index in row[1 : 1 + count].tolist():
            return
        if count < NOTED:
            row[1 + count] = index
        row[0] = count + 1
        logger.info("skipped: %s", error)
