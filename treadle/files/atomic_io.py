"""Writing that survives a crash: data first, then names. Reading that tells a bad file from a bad moment."""

import errno
import os
import shutil
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from treadle.errors import StorageError

CHUNK = 1 << 20
PART = ".part"
PAUSES = (0.1, 0.4, 1.5)
"""Seconds between the attempts to read what could not be read for a reason that may pass."""
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG})
_PASSING = frozenset(
    {
        *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EIO, errno.EAGAIN, errno.EINTR),
        *(errno.EBUSY, errno.ESTALE, errno.ETIMEDOUT),
    }
)

Read = TypeVar("Read")


def read_patiently(read: Callable[[], Read]) -> Read:
    """Return what `read` does; after an error that may pass, such as too many open files, it is tried again.

    Raises:
        OSError: It is the last one, or one that does not pass.
    """
    for pause in PAUSES:
        try:
            return read()
        except OSError as error:
            if error.errno not in _PASSING:
                raise
        time.sleep(pause)
    return read()


@contextmanager
def telling_absence(path: Path, advice: str = "") -> Iterator[None]:
    """Let errors of the block through that say that something is not there; others say nothing about the file.

    Raises:
        OSError: The file is not there, or something else is.
        StorageError: It could not be read; it may well be whole.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _ABSENT:
            raise
        raise StorageError(
            f"{path} cannot be read now: {error}; it may be whole, so nothing was removed{advice}"
        ) from error


def sync_file(path: Path) -> None:
    """Force what was written to `path`, a file or a folder, out to the disk."""
    if not hasattr(os, "O_DIRECTORY"):
        # Windows opens no folders, and writes their entries through itself; a file must be open for writing.
        if path.is_dir():
            return
        descriptor = os.open(path, os.O_RDWR)
    else:
        descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` make a file beside `path`, and put it in its place only when it is complete on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # In a folder of its own: safetensors writes to a file of a random name first, which a kill would leave behind.
    room = path.with_name(f".{path.name}.{os.getpid()}{PART}")
    try:
        room.mkdir(exist_ok=True)
        write(room / path.name)
        give_plain_mode(room / path.name)
        sync_file(room / path.name)
        os.replace(room / path.name, path)
        sync_file(path.parent)
    finally:
        shutil.rmtree(room, ignore_errors=True)


def replace_text(path: Path, text: str) -> None:
    """Write `text` to `path` so that a reader sees the old text or the new, never a part."""
    replace_file(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def give_plain_mode(path: Path) -> None:
    """Let others read `path` if they may read its folder, which was made the plain way; safetensors forbids it."""
    with suppress(OSError):  # not every file system has modes
        path.chmod(path.parent.stat().st_mode & 0o666)


def clear_parts(folder: Path) -> None:
    """Remove what `replace_file` was writing in `folder` when an earlier process was killed."""
    for path in folder.glob(f".*{PART}"):
        shutil.rmtree(path, ignore_errors=True)


def checksum(path: Path) -> str:
    """Return the CRC-32 of a file as eight hexadecimal digits; enough to notice damage, not tampering."""
    value = 0
    with path.open("rb") as file:
        while block := file.read(CHUNK):
            value = zlib.crc32(block, value)
    return f"{value:08x}"
