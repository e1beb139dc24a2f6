"""Writing that survives a crash: data first, then names."""

import os
import zlib
from collections.abc import Callable
from pathlib import Path

CHUNK = 1 << 20


def sync_file(path: Path) -> None:
    """Force what was written to `path`, a file or a folder, out to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` make a file beside `path`, and put it in its place only when it is complete on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        write(temporary)
        sync_file(temporary)
        os.replace(temporary, path)
        sync_file(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def replace_text(path: Path, text: str) -> None:
    """Write `text` to `path` so that a reader sees the old text or the new, never a part."""
    replace_file(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def checksum(path: Path) -> str:
    """Return the CRC-32 of a file as eight hexadecimal digits; enough to notice damage, not tampering."""
    value = 0
    with path.open("rb") as file:
        while block := file.read(CHUNK):
            value = zlib.crc32(block, value)
    return f"{value:08x}"
