"""Intervals of numbers, as settings write them: "[3,inf)", or several with a semicolon between them."""

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from treadle.errors import ConfigError

_ONE = re.compile(r"\s*([\[(])\s*([^,;\s]+)\s*,\s*([^,;\s]+)\s*([\])])\s*")


@dataclass(frozen=True)
class Interval:
    """All numbers from `low` to `high`.

    Attributes:
        low: The lower end.
        high: The upper end.
        with_low: Whether the lower end belongs to it.
        with_high: Whether the upper end belongs to it.
    """

    low: float
    high: float
    with_low: bool
    with_high: bool

    def contains(self, values: Any) -> Any:
        """Return whether each value is in the interval; nan never is."""
        above = values >= self.low if self.with_low else values > self.low
        below = values <= self.high if self.with_high else values < self.high
        return above & below


def parse_intervals(given: Any, where: str) -> list[Interval]:
    """Return the intervals that a setting stands for.

    >>> [one.high for one in parse_intervals("(0,1];[3,inf)", "a")]
    [1.0, inf]

    Args:
        given: The text, or two numbers where YAML has made a list of it.
        where: The setting, for messages.

    Raises:
        ConfigError: It is no interval, or an empty one.
    """
    text = _as_text(given)
    intervals = []
    for part in text.split(";"):
        found = _ONE.fullmatch(part)
        try:
            low, high = (float(found[2]), float(found[3])) if found else (math.nan, math.nan)
        except ValueError:
            found = None
        if found is None or math.isnan(low) or math.isnan(high):
            raise ConfigError(
                f"{where}={given!r}: {part.strip()!r} is no interval; write [3,5], [3,5), (3,5] or (3,5), inf for no "
                "end, and a semicolon between several"
            )
        interval = Interval(low, high, found[1] == "[", found[4] == "]")
        if low > high or (low == high and not (interval.with_low and interval.with_high)):
            raise ConfigError(f"{where}={given!r}: there is no number in {part.strip()!r}")
        intervals.append(interval)
    return intervals


def _as_text(given: Any) -> str:
    if isinstance(given, list):
        return f"[{','.join(map(str, given))}]"
    if isinstance(given, tuple):
        return f"({','.join(map(str, given))})"
    return str(given)


def within(values: np.ndarray[Any, Any], intervals: list[Interval]) -> np.ndarray[Any, Any]:
    """Return whether each value is in one of the intervals."""
    inside = np.zeros(values.shape, bool)
    for interval in intervals:
        inside |= interval.contains(values)
    return inside
