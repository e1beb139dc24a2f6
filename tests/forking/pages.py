"""How a process holds its memory, so that forks of it and what it allocates again cost little of the system's time.

Half a gigabyte of imports is 130,000 pages: a fork copies an entry for each, and the end of what was forked lets each
go, 30 ms of a core for a process that does nothing. Of pages that are 512 times as large there are few.
"""

import ctypes
import sys
from pathlib import Path

LARGE = 2 << 20
"""Bytes of a large page."""
KEPT = 256 << 20
"""Bytes of free memory that stay with the process."""
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # of mallopt(3)
_COLLAPSE = 25  # MADV_COLLAPSE of Linux


def keep_freed_memory() -> None:
    """Have the C library keep what is set free, which the kernel would hand out again page by page, each zeroed."""
    if sys.platform != "linux":
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(_TRIM_THRESHOLD, KEPT)
        library.mallopt(_MMAP_THRESHOLD, KEPT)
        library.mallopt(_TOP_PAD, LARGE)


def use_large_pages() -> None:
    """Move what is allocated to large pages; where the kernel does not, all stays as it is."""
    if sys.platform != "linux":
        return
    library = ctypes.CDLL(None)
    library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for begin, end in _own_ranges():
        library.madvise(begin, end - begin, _COLLAPSE)


def _own_ranges() -> list[tuple[int, int]]:
    """Return the ranges of whole large pages in memory that is neither shared nor that of a file."""
    ranges = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, permissions, _, _, _, *name = line.split()
        begin, end = (int(address, 16) for address in addresses.split("-"))
        begin, end = -(-begin // LARGE) * LARGE, end // LARGE * LARGE
        if permissions == "rw-p" and name in ([], ["[heap]"]) and begin < end:
            ranges.append((begin, end))
    return ranges
