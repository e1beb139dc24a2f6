"""What a file says it holds, compared with what its bytes can hold, before memory is taken for it."""

import zipfile
from typing import Any

from torch import Tensor

from treadle.errors import CheckpointError

GENEROUS = 64 * 2**20
"""Bytes that a small file may become without anybody asking."""
CHUNK = 2**20
MOST_TIMES = 20
"""How many times its size an entry of an archive, or all that is copied out of one, may become."""


def check_archive(archive: zipfile.ZipFile, size: int) -> None:
    """Refuse an archive whose entries say that they are larger than what is packed in `size` bytes of file.

    Raises:
        CheckpointError: An entry, or all of them together, cannot be what it says.
    """
    entries = archive.infolist()
    for entry in entries:
        stored = entry.compress_type == zipfile.ZIP_STORED
        most = entry.compress_size if stored else GENEROUS + MOST_TIMES * entry.compress_size
        if entry.file_size > most or entry.compress_size > size:
            raise CheckpointError(
                f"its entry {entry.filename!r} says that it holds {entry.file_size} bytes in {entry.compress_size} of "
                f"a file of {size}; no weights are packed so: it is damaged, or made to fill the memory"
            )
    packed = sum(entry.compress_size for entry in entries)
    if packed > size:
        raise CheckpointError(f"its entries say that they take {packed} bytes of a file of {size}")


def check_sums(archive: zipfile.ZipFile) -> None:
    """Refuse an archive with an entry that is not what was written, which torch does not look for.

    An entry without a checksum (`torch.serialization.set_crc32_options(False)`) says nothing of that.

    Raises:
        CheckpointError: A checksum is not that of its entry.
    """
    for entry in archive.infolist():
        if not entry.CRC:
            continue
        try:
            with archive.open(entry) as content:
                while content.read(CHUNK):
                    pass
        except zipfile.BadZipFile as error:
            raise CheckpointError(f"it is damaged, its entry {entry.filename!r} has changed: {error}") from error


class Budget:
    """Counts what is made of a file, and refuses more than such a file can stand for.

    Args:
        size: The size of the file.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._left = GENEROUS + MOST_TIMES * size

    def spend(self, nbytes: int) -> None:
        """Take note that so many bytes are about to be made.

        Raises:
            CheckpointError: With them it is too much.
        """
        self._left -= nbytes
        if self._left < 0:
            raise CheckpointError(
                f"a file of {self._size} bytes says that it holds {MOST_TIMES} times as much and more; it is damaged, "
                "or made to fill the memory"
            )


def check_tensors(tree: Any, budget: Budget) -> None:
    """Refuse a tree with tensors that would become much larger than the memory they share.

    Raises:
        CheckpointError: Together they are more than the file can stand for.
    """
    waiting, seen = [tree], set[int]()
    while waiting:
        one = waiting.pop()
        if isinstance(one, Tensor) and one.layout is not None:
            budget.spend(max(0, one.nbytes - _held(one)))
        elif isinstance(one, (dict, list, tuple)) and id(one) not in seen:
            seen.add(id(one))
            waiting += one.values() if isinstance(one, dict) else one


def _held(tensor: Tensor) -> int:
    try:
        return tensor.untyped_storage().nbytes()
    except NotImplementedError:  # a sparse tensor has none of its own
        return tensor.nbytes
