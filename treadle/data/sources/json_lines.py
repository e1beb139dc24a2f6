"""JSON lines: a record in each line of text files, which an index finds."""

import json
import zlib
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from treadle.data.sources.descriptors import OpenFiles
from treadle.data.sources.records import Columns, CorruptRecordError, by_name, found_files, index_of
from treadle.data.sources.source import IndexedSource
from treadle.errors import DataError

CHUNK = 1 << 24
ENDINGS = (".jsonl", ".ndjson", ".json")


def line_index(path: Path) -> tuple[Columns, dict[str, Any]]:
    """Return where each line that is not empty begins and ends, and a checksum of the file."""
    ends, crc, base = [], 0, 0
    with path.open("rb") as file:
        while block := file.read(CHUNK):
            crc = zlib.crc32(block, crc)
            ends.append(np.flatnonzero(np.frombuffer(block, np.uint8) == 10) + base + 1)
            base += len(block)
    stops = np.concatenate([np.empty(0, np.int64), *ends]).astype(np.uint64)
    if base and (not len(stops) or int(stops[-1]) < base):
        stops = np.append(stops, np.uint64(base))
    starts = np.concatenate([np.zeros(1, np.uint64), stops[:-1]]) if len(stops) else stops
    # An empty line is nothing but its end.
    kept = stops - starts > 1
    return {"start": starts[kept], "stop": stops[kept]}, {"crc32": f"{crc:08x}"}


class JsonLines(IndexedSource):
    """Samples from JSON lines, read where they stand.

    The first time, each file is read once to find its lines; that index is kept beside it.

    Args:
        path: A file, a folder, a pattern such as "part-*.jsonl", or a list of these.
        transform: Makes a sample of what a line holds; None leaves it as it is.
        on_corrupt: "raise" makes a line that is no JSON an error; "skip" takes the next one in its place, and counts
            it.
        index_dir: Where indices are kept; None is beside the files.

    Raises:
        DataError: There is no file, or no line in them.
    """

    def __init__(
        self,
        path: str | Path | Sequence[str | Path],
        *,
        transform: Callable[[Any], Any] | None = None,
        on_corrupt: str = "raise",
        index_dir: str | Path | None = None,
    ) -> None:
        super().__init__(transform=transform, on_corrupt=on_corrupt)
        self.paths = found_files(path, ENDINGS, "JsonLines")
        indices = [index_of(one, line_index, index_dir) for one in self.paths]
        self._crcs = [f"{one.facts['size']} bytes, {one.facts['crc32']}" for one in indices]
        self._lines = [one.columns for one in indices]
        self._firsts = [0, *np.cumsum([len(one["start"]) for one in self._lines]).tolist()]
        self._files = OpenFiles(self.paths)
        if not len(self):
            raise DataError(f"JsonLines: {', '.join(map(str, self.paths[:3]))} has no line; give at least one")

    def __len__(self) -> int:
        return int(self._firsts[-1])

    def read_one(self, index: int) -> Any:
        """Return what the line of a sample holds.

        Raises:
            CorruptRecordError: It is no JSON.
        """
        place = bisect_right(self._firsts, index) - 1
        lines, number = self._lines[place], index - self._firsts[place]
        start, stop = int(lines["start"][number]), int(lines["stop"][number])
        text = self._files.read(place, stop - start, start)
        try:
            return json.loads(text)
        except ValueError as error:
            line = _line_number(self.paths[place], start)
            raise CorruptRecordError(
                f"{self.paths[place]}, line {line}: no JSON ({error}); mend the line, or pass on_corrupt='skip'"
            ) from None

    def fingerprint(self) -> Mapping[str, Any]:
        """Return the size and the checksum of each file."""
        return by_name(self.paths, self._crcs)


def _line_number(path: Path, start: int) -> int:
    number = 1
    with path.open("rb") as file:
        while start > 0 and (block := file.read(min(CHUNK, start))):
            number += block.count(b"\n")
            start -= len(block)
    return number
