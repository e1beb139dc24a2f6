"""Long text of a checkpoint, deflated: what lists a model layer by layer repeats itself."""

import base64
import gzip
import zlib

from treadle.checkpoint.format.size_checks import GENEROUS, MOST_TIMES

LEAST_BYTES = 1 << 14
"""A shorter file stays as it is, for whoever opens it."""
LEAST_LISTING = 1 << 12
"""So does a shorter value inside one."""


def deflated(text: str) -> bytes | None:
    """Return `text` as the content of a gzip file; None if it would not be read again, since it shrinks too much."""
    content = text.encode()
    packed = gzip.compress(content, mtime=0)
    return packed if len(content) <= _most(packed) else None


def inflated(packed: bytes) -> str:
    """Return the text that `deflated` packed.

    Raises:
        ValueError: It is no such content, or made to fill the memory.
    """
    inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        content = inflater.decompress(packed, _most(packed))
    except zlib.error as error:
        raise ValueError(f"it cannot be inflated: {error}") from error
    if inflater.unconsumed_tail:
        raise ValueError(f"{len(packed)} bytes become more than {_most(packed)}; they are made to fill the memory")
    if not inflater.eof:
        raise ValueError("it cannot be inflated: it ends too early")
    return content.decode()


def deflated_text(text: str) -> str | None:
    """Return `text` deflated, in letters that JSON holds; None as `deflated` does."""
    packed = deflated(text)
    return None if packed is None else base64.b85encode(packed).decode()


def inflated_text(text: object) -> str:
    """Return the text that `deflated_text` packed.

    Raises:
        ValueError: It is no such text, or made to fill the memory.
    """
    if not isinstance(text, str):
        raise ValueError(f"it is no deflated text, but a {type(text).__name__}")
    return inflated(base64.b85decode(text.encode()))


def _most(packed: bytes) -> int:
    return GENEROUS + MOST_TIMES * len(packed)
