"""Files of a run, read whatever they are: never more than a bound, never waiting, and with a reason where it fails."""

import json
import os
import re
import stat
from pathlib import Path
from typing import Any, BinaryIO

# Passwords in addresses, which nobody else is to read


_PASSWORD = re.compile(r"(?P<before>\b[a-zA-Z][\w+.-]*://[^\s/:@?#]*:)(?:[^\s/]*|(?!\d+/)[^\s@]*)(?=@)")
_PARAMETER = re.compile(r"(?P<before>[?&](?:password|passwd|pwd|token|secret|api_key)=)[^\s&#]+", re.IGNORECASE)


def without_passwords(text: str) -> str:
    """Return a text in which the password of every URL is hidden; for whatever is printed, logged or kept.

    >>> without_passwords("mysql+pymysql://user:secret@host:3306/trials is not there")
    'mysql+pymysql://user:***@host:3306/trials is not there'
    >>> without_passwords("postgresql://user:se/cret@host/trials")
    'postgresql://user:***@host/trials'
    >>> without_passwords("http://host:8080/a@b")
    'http://host:8080/a@b'
    """
    return _PARAMETER.sub(r"\g<before>***", _PASSWORD.sub(r"\g<before>***", text))


NO_WAIT: int = getattr(os, "O_NONBLOCK", 0)
"""Has a pipe in the place of a file not be waited for; Windows has no such pipes."""
_AS_IT_IS: int = getattr(os, "O_BINARY", 0)
"""Has Windows leave line ends alone."""

LARGEST = 8 * 2**20
"""Bytes of a file that is read as a whole; all that runs write is far below it."""


class UnreadableError(Exception):
    """A file is there and cannot be used; the message says why."""


def open_regular(path: Path) -> BinaryIO:
    """Open a file to be read, without a buffer.

    Raises:
        UnreadableError: It is no file: a pipe would be waited for, a device has no end.
        OSError: It cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | NO_WAIT | _AS_IT_IS)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UnreadableError(f"{path.name} is no regular file")
        return os.fdopen(descriptor, "rb", buffering=0)
    except BaseException:
        os.close(descriptor)
        raise


def read_bytes(path: Path, *, most: int = LARGEST, end: bool = False) -> bytes | None:
    """Return what a file holds; None if it is not there.

    Args:
        path: The file.
        most: How many bytes at most.
        end: Whether the last `most` bytes of a larger file will do.

    Raises:
        UnreadableError: It is larger, cannot be read, or is no file: a pipe would be waited for.
    """
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > most and not end:
                raise UnreadableError(f"{path.name} has {size:,} bytes, more than {most:,}")
            file.seek(max(0, size - most))
            return file.read(min(size, most))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UnreadableError(f"{path.name} cannot be read: {error}") from error


def read_text(path: Path, *, most: int = LARGEST, end: bool = False) -> str:
    """Return the text of a file; nothing if it is not there. See `read_bytes`."""
    return (read_bytes(path, most=most, end=end) or b"").decode("utf-8", errors="replace")


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; an empty one if it is not there.

    Raises:
        UnreadableError: There is something else in it.
    """
    content = read_bytes(path)
    if content is None:
        return {}
    found = parsed(content)
    if found is None:
        raise UnreadableError(f"{path.name} holds no JSON object")
    return found


def parsed(content: bytes | str) -> dict[str, Any] | None:
    """Return the JSON object in some text; None if there is none, or it is nested too deeply.

    >>> parsed('{"step": 1}'), parsed("{"), parsed("[1]"), parsed("[" * 100_000)
    ({'step': 1}, None, None, None)
    """
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def printable(text: str) -> str:
    """Return a text in which control characters are written out, for a terminal that would obey them.

    >>> print(printable("run\\x1b[2J\\n"))
    run\\x1b[2J\\n
    """
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
