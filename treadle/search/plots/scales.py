"""From values to places on an axis."""

import json
import math
from collections.abc import Sequence
from typing import Any

ABSENT = "not there"
"""What the axis of a decision calls trials in which it was not to be made."""


class Scale:
    """The numbers between two, evenly or by their logarithm, from 0 to 1.

    Args:
        values: What must fit on it.
        log: Whether by the logarithm.
    """

    def __init__(self, values: Sequence[float], *, log: bool = False) -> None:
        self.log = log and min(values, default=1.0) > 0
        low, high = min(values, default=0.0), max(values, default=1.0)
        if low == high:
            low, high = (low / 2, high * 2) if self.log else (low - 0.5, high + 0.5)
        self.low, self.high = low, high

    def place(self, value: float) -> float:
        """Return where a value lies, from 0 to 1."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self, most: int = 6) -> list[tuple[float, str]]:
        """Return round numbers of the range, with their words."""
        found = _powers(self.low, self.high) if self.log else []
        return [(self.place(value), words(value)) for value in found or round_numbers(self.low, self.high, most)]


class Names:
    """Values that have no order but that of their list, at equal distances.

    Args:
        values: All of them.
    """

    def __init__(self, values: Sequence[Any]) -> None:
        self._places = {key_text(value): place for place, value in enumerate(values)}

    def place(self, value: Any) -> float:
        """Return where a value lies, from 0 to 1."""
        return (self._places[key_text(value)] + 0.5) / len(self._places)

    def ticks(self) -> list[tuple[float, str]]:
        """Return all values with their places."""
        count = len(self._places)
        return [((place + 0.5) / count, text) for text, place in self._places.items()]


def round_numbers(low: float, high: float, most: int = 6) -> list[float]:
    """Return round numbers at equal distances between two others.

    >>> round_numbers(0.13, 0.97)
    [0.2, 0.4, 0.6, 0.8]
    """
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def _powers(low: float, high: float) -> list[float]:
    found = [10.0**power for power in range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)]
    return found if len(found) > 1 else []


def words(value: float) -> str:
    """Return a number as an axis shows it.

    >>> words(0.0001), words(73.5), words(20_000.0)
    ('0.0001', '73.5', '20000')
    """
    return f"{value:.6g}"


def key_text(value: Any) -> str:
    """Return a value as an axis shows it; text stands without quotes."""
    return value if isinstance(value, str) else json.dumps(value, default=str)
