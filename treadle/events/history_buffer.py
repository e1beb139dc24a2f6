"""A metric's past, looked at through windows of iterations."""

import math
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

from treadle.errors import ConfigError

# The values of one metric, with the steps at which they were put


Kind = Literal["step", "epoch"]

STEP_WINDOW = 4096
"""How many values of a step scalar stay in memory; the whole curve is in the run's metrics file."""


@dataclass(slots=True)
class Series:
    """The values of one metric with the steps at which they were put.

    Attributes:
        kind: Whether it is a scalar of steps or a metric of epochs; of the latter every value is kept.
        steps: The step of each value.
        values: The values, in the order they were put.
        smoothing: Whether it is shown as the median of a window rather than raw.
        limit: How many values of a step scalar are kept at least.
        forgotten: How many values were dropped because of the limit.
        forgotten_total: The sum of those.
        sequence: The place of the newest value among all that came to the storage; 0 if it was loaded.
    """

    kind: Kind
    steps: list[int] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    smoothing: bool = True
    limit: int = STEP_WINDOW
    forgotten: int = 0
    forgotten_total: float = 0.0
    sequence: int = 0

    def append(self, step: int, value: Any) -> None:
        """Add one value; a step scalar forgets values beyond its window."""
        self.steps.append(step)
        self.values.append(value)
        if self.kind == "step" and len(self.values) > 2 * self.limit:
            self.forgotten_total = math.fsum([self.forgotten_total, *self.values[: -self.limit]])
            self.forgotten += len(self.values) - self.limit
            del self.steps[: -self.limit], self.values[: -self.limit]

    def window(self, size: int) -> list[Any]:
        """Return the values of the last `size` iterations, counted back from that of the newest value."""
        newest, begin = self.steps[-1], len(self.steps)
        # A later step before an earlier one is that of another run, whose history was kept.
        while begin and newest - size < self.steps[begin - 1] <= newest:
            begin -= 1
        return self.values[begin:]

    def state_dict(self) -> dict[str, Any]:
        """Return the series as plain data; what is as it is by default is left out."""
        state: dict[str, Any] = {"kind": self.kind, "steps": list(self.steps), "values": list(self.values)}
        if self.kind == "step" and not self.smoothing:
            state["smoothing"] = False
        if self.forgotten:
            state["forgotten"] = [self.forgotten, self.forgotten_total]
        return state

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Series":
        """Return the series that `state` was taken of."""
        smoothing = state["kind"] == "step" and bool(state.get("smoothing", True))
        series = cls(state["kind"], list(state["steps"]), list(state["values"]), smoothing)
        count, total = state.get("forgotten", (0, 0.0))
        series.forgotten, series.forgotten_total = int(count), float(total)
        return series


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
        return median_value(self._filled().window(window_size))

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


def median_value(values: list[float]) -> float:
    """Return the median of `values`; nan if one of them is nan, for hiding it would help nobody.

    >>> median_value([3.0, 1.0, 2.0]), median_value([1.0, float("nan"), 2.0])
    (2.0, nan)
    """
    return math.nan if any(value != value for value in values) else float(median(values))
