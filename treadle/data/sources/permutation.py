"""Permutations that need no memory: what stands at a place is calculated, for any place alone."""

from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np

ROUNDS = 6
"""Rounds of the network; four already look random to who cannot try them all."""
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)

Places = np.ndarray[Any, np.dtype[np.int64]]
"""Whole numbers from 0, many at once."""


def permuted(places: Places, length: int, *key: object) -> Places:
    """Return what stands at `places` of a permutation of `length` numbers, one for each key.

    A Feistel network permutes the numbers below a power of four; what lands at `length` or above is put through it
    again until it does not. No place costs more than another, and none needs those before it.

    >>> sorted(permuted(np.arange(5), 5, "seed", 1).tolist())
    [0, 1, 2, 3, 4]

    Args:
        places: Places below `length`.
        length: How many numbers are permuted.
        key: Whatever tells one permutation from another.
    """
    half = max(1, -(-max(length - 1, 1).bit_length() // 2))
    keys = _round_keys(key)
    found = _network(places.astype(np.uint64), half, keys)
    outside = np.flatnonzero(found >= length)
    while len(outside):
        found[outside] = _network(found[outside], half, keys)
        outside = outside[found[outside] >= length]
    result: Places = found.astype(np.int64)
    return result


def _network(values: Any, half: int, keys: tuple[Any, ...]) -> Any:
    bits, mask = np.uint64(half), np.uint64((1 << half) - 1)
    left, right = values >> bits, values & mask
    for key in keys:
        left, right = right, left ^ (_mixed(right + key) & mask)
    return (left << bits) | right


def _mixed(values: Any) -> Any:
    """Spread every bit over all bits, as the generator SplitMix64 does."""
    values = (values ^ (values >> np.uint64(30))) * _FIRST
    values = (values ^ (values >> np.uint64(27))) * _SECOND
    return values ^ (values >> np.uint64(31))


@lru_cache(maxsize=256)
def _round_keys(key: tuple[object, ...]) -> tuple[Any, ...]:
    digest = blake2b(repr(key).encode(), digest_size=8 * ROUNDS).digest()
    return tuple(np.frombuffer(digest, dtype="<u8").astype(np.uint64))
