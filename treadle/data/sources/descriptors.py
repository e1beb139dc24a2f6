"""Files that stay open while their samples are drawn, in each process by itself."""

import os
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MOST_OPEN = 128


class OpenFiles:
    """Files that are read at any place, opened when that is first done; the one that was not used longest is closed.

    Args:
        paths: The files.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = list(paths)
        self._open: OrderedDict[int, int] = OrderedDict()

    def read(self, number: int, size: int, place: int) -> bytes:
        """Return `size` bytes of a file from a place on; fewer at its end."""
        descriptor = self._descriptor(number)
        if hasattr(os, "pread"):
            # It has no place of its own, so that processes that are forked may share the file.
            return os.pread(descriptor, size, place)
        os.lseek(descriptor, place, os.SEEK_SET)
        return os.read(descriptor, size)

    def _descriptor(self, number: int) -> int:
        found = self._open.get(number)
        if found is None:
            if len(self._open) >= MOST_OPEN:
                os.close(self._open.popitem(last=False)[1])
            found = self._open[number] = os.open(self._paths[number], os.O_RDONLY | getattr(os, "O_BINARY", 0))
        else:
            self._open.move_to_end(number)
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {"_paths": self._paths, "_open": OrderedDict()}

    def __del__(self) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
