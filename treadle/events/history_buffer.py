"""A metric's past, looked at through windows of iterations."""

import math
from statistics import median
from typing import Any

from treadle.errors import ConfigError
from treadle.events.series import Series


class HistoryBuffer:
    """The past values of one scalar, with averages over all of it or over the last iterations.

    >>> buffer = HistoryBuffer()
    >>> for iteration, value in enumerate([1.0, 5.0, 3.0]):
    ...     buffer.update(value, iteration)
    >>> buffer.median(2), buffer.avg(3), buffer.latest()
    (4.0, 3.0, 3.0)

    Args:
        max_length: How many values are kept at least; older ones count in `global_avg` only.
        series: The values to look at, of a storage; by default new ones.
    """

    def __init__(self, max_length: int = 1_000_000, *, series: Series | None = None) -> None:
        if max_length < 1:
            raise ConfigError(f"max_length={max_length} keeps no value; use at least 1")
        self._series = Series("step", limit=max_length) if series is None else series

    def update(self, value: float, iteration: int | None = None) -> None:
        """Add a value, by default at the iteration after that of the last."""
        if iteration is None:
            iteration = self._series.steps[-1] + 1 if self._series.steps else 0
        self._series.append(iteration, value)

    def latest(self) -> Any:
        """Return the newest value."""
        return self._filled().values[-1]

    def median(self, window_size: int) -> float:
        """Return the median over the last `window_size` iterations; nan if one of the values is nan."""
        return median_of(self._filled().window(window_size))

    def avg(self, window_size: int) -> float:
        """Return the mean over the last `window_size` iterations."""
        values = self._filled().window(window_size)
        return math.fsum(values) / len(values)

    def global_avg(self) -> float:
        """Return the mean over every value there ever was, those no longer kept included."""
        series = self._filled()
        total = math.fsum([series.forgotten_total, *series.values])
        return total / (series.forgotten + len(series.values))

    def values(self) -> list[tuple[Any, int]]:
        """Return the values that are kept, each with its iteration."""
        return list(zip(self._series.values, self._series.steps, strict=True))

    def _filled(self) -> Series:
        if not self._series.values:
            raise ConfigError("this history holds no value yet; update it first")
        return self._series


def median_of(values: list[float]) -> float:
    """Return the median of `values`; nan if one of them is nan, for hiding it would help nobody.

    >>> median_of([3.0, 1.0, 2.0]), median_of([1.0, float("nan"), 2.0])
    (2.0, nan)
    """
    return math.nan if any(value != value for value in values) else float(median(values))
