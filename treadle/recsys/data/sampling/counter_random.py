"""Random numbers by their place: what is drawn depends on a seed and a counter, and on nothing drawn before.

A torch generator hands out numbers in order, on each device others, and has to be replayed to be entered in the
middle. Here the number at a counter is a hash of the seed and the counter, in 64-bit integer arithmetic: the same on
every device, in any order, in any batch, and inside a captured CUDA graph where the seed is a tensor on the device.

The hash is the finaliser of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
"""

import torch
from torch import Tensor

_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15
_ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = 31
COLUMN_BITS = 24
"""How much of a counter numbers the draws of one row; what is left, 39 bits, numbers the rows."""


def random_bits(seed: int | Tensor, counters: Tensor) -> Tensor:
    """Return a random integer of 63 bits, never negative, for each counter.

    Args:
        seed: Which sequence; a number, or a 0-dimensional int64 tensor, which a captured graph reads anew each time.
        counters: Places in the sequence, int64.

    >>> places = torch.arange(4)
    >>> bool((random_bits(1, places)[2] == random_bits(torch.tensor(1), places[2:])[0]).all())
    True
    """
    key = _mixed(seed + _signed(_STEP)) if isinstance(seed, Tensor) else _signed(_mixed_number(seed + _STEP))
    bits = _mixed(counters * _signed(_STEP) + key)
    return bits.bitwise_and_(_signed(_MASK >> 1))


def row_counters(positions: Tensor, columns: Tensor) -> Tensor:
    """Return the counter of each draw: `positions` are rows, `columns` number the draws of a row; they broadcast."""
    return (positions << COLUMN_BITS) + columns


def random_below(bits: Tensor, bounds: Tensor) -> Tensor:
    """Return `bits`, of `random_bits`, as numbers from 0 to `bounds` - 1, each equally likely.

    A remainder favours small numbers by less than bounds / 2**63, which no sample will ever show.
    """
    return torch.remainder(bits, bounds)


def random_unit(bits: Tensor) -> Tensor:
    """Return `bits`, of `random_bits`, as float64 numbers between 0 and 1, neither of them included."""
    return ((bits >> 11).double() + 0.5) * 2.0**-52


def _mixed(state: Tensor) -> Tensor:
    # In place, for the numbers of an epoch fit no cache. A shift of int64 drags the sign in; the mask takes it out.
    for shift, factor in _ROUNDS:
        state = _folded(state, shift).mul_(_signed(factor))
    return _folded(state, _LAST_SHIFT)


def _folded(state: Tensor, shift: int) -> Tensor:
    return state.bitwise_xor_((state >> shift).bitwise_and_(_MASK >> shift))


def _mixed_number(state: int) -> int:
    state &= _MASK
    for shift, factor in _ROUNDS:
        state = ((state ^ (state >> shift)) * factor) & _MASK
    return state ^ (state >> _LAST_SHIFT)


def _signed(number: int) -> int:
    """Return a number of 64 bits as the int64 that has the same bits."""
    return number - (1 << 64) if number >> 63 else number
