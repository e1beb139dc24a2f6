"""The values of one metric, with the steps at which they were put."""

from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["step", "epoch"]

STEP_WINDOW = 4096
"""How many values of a step scalar stay in memory; the whole curve is in the run's metrics file."""


@dataclass(slots=True)
class Series:
    """The values of one metric with the steps at which they were put."""

    kind: Kind
    steps: list[int] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)

    def append(self, step: int, value: Any) -> None:
        """Add one value; a step scalar forgets values beyond its window."""
        self.steps.append(step)
        self.values.append(value)
        if self.kind == "step" and len(self.values) > 2 * STEP_WINDOW:
            del self.steps[:-STEP_WINDOW], self.values[:-STEP_WINDOW]
