"""The values of one metric, with the steps at which they were put."""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

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
