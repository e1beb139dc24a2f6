"""Files for `torch.load(weights_only=True)`: plain containers and tensors, and a line that says who wrote them.

The line is the comment of the archive that `torch.save` writes, which torch leaves alone. It holds a checksum of all
bytes before it, so that no bit of the file changes unnoticed.
"""

import json
import os
import zipfile
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import torch

from treadle.errors import CheckpointError

CHUNK = 1 << 20
END = b"PK\x05\x06"
"""What the last record of an archive begins with; without a comment it is 22 bytes long, and ends in two zeros."""


def write_torch(path: Path, tree: Any, *, signed: str | None = None) -> None:
    """Write `tree`, plain data and tensors on the host; the same tree makes the same bytes, whatever the name.

    Args:
        path: The file.
        tree: What it holds.
        signed: The format to note in it, with a checksum; None for a file that says nothing of where it is from.

    Raises:
        OSError, RuntimeError: It cannot be written.
    """
    with path.open("w+b") as file:
        torch.save(tree, file)
        if signed is not None:
            _sign(file, signed)


def _sign(file: BinaryIO, signed: str) -> None:
    file.seek(-22, os.SEEK_END)
    last = file.read()
    if not last.startswith(END) or last[-2:] != b"\0\0":
        raise RuntimeError("torch.save wrote an archive with another end than usual")
    file.seek(-2, os.SEEK_END)
    file.write(len(_line(signed, 0)).to_bytes(2, "little"))
    value = _checksum(file, file.tell())
    file.seek(0, os.SEEK_END)
    file.write(_line(signed, value))


def _line(signed: str, value: int) -> bytes:
    return json.dumps({"format": signed, "crc32": f"{value:08x}"}).encode()


def read_format(path: str | os.PathLike[str]) -> str | None:
    """Return the format that is noted in a file; None if nothing is. Nothing of its pickle is looked at.

    Raises:
        CheckpointError: It is no whole archive any more.
        OSError: It cannot be read.
    """
    return _noted(path).get("format")


def is_intact(path: str | os.PathLike[str]) -> bool:
    """Whether all of a file in which a format is noted is as it was written.

    Raises:
        OSError: It cannot be read.
    """
    noted = _noted(path)
    with Path(path).open("rb") as file:
        length = file.seek(0, os.SEEK_END) - len(_line(str(noted.get("format")), 0))
        return noted.get("crc32") == f"{_checksum(file, length):08x}"


def _noted(path: str | os.PathLike[str]) -> dict[str, str]:
    try:
        with zipfile.ZipFile(path) as archive:
            line = archive.comment
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        with Path(path).open("rb") as file:
            if file.read(2) != b"PK":
                return {}
        reason = "it begins as an archive and does not end as one"
        raise CheckpointError(f"{os.fspath(path)} is damaged: {reason}") from error
    try:
        found = json.loads(line or b"{}")
    except (ValueError, RecursionError) as error:
        if not line.startswith(_line("", 0)[:10]):
            return {}
        raise CheckpointError(f"{os.fspath(path)} is damaged: its last line is cut off") from error
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}


def _checksum(file: BinaryIO, length: int) -> int:
    """Return the CRC-32 of the first bytes of a file."""
    file.seek(0)
    value = 0
    while length > 0 and (block := file.read(min(CHUNK, length))):
        value, length = zlib.crc32(block, value), length - len(block)
    return value
