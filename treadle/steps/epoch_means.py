"""What steps report, as means over the samples of an epoch."""

from typing import Any

import torch
from torch import Tensor


class EpochMeans:
    """Sums of what was reported since an epoch began, by name; they stay on the device.

    Attributes:
        batches: How many batches there were.
    """

    def __init__(self) -> None:
        self.batches = 0
        self._sums: dict[str, Tensor] = {}
        self._weights: dict[str, float] = {}
        self._metrics: dict[str, Any] = {}

    def add(self, name: str, value: Any, weight: float) -> None:
        """Add a number that is the mean of so many samples, or a torchmetric that counts by itself."""
        if hasattr(value, "compute") and hasattr(value, "reset"):
            self._metrics[name] = value
            return
        number = value.detach() if isinstance(value, Tensor) else torch.tensor(float(value))
        before = self._sums.get(name)
        own = number.double() if number.device.type == "cpu" else number.float()
        self._sums[name] = own * weight if before is None else before.to(own.device) + own * weight
        self._weights[name] = self._weights.get(name, 0.0) + weight

    def take(self, processes: Any) -> dict[str, float]:
        """Return the means over all processes, and begin anew."""
        names = sorted(self._sums)
        totals = [float(self._sums[name]) for name in names] + [self._weights[name] for name in names]
        summed = processes.reduce(totals) if totals else []
        means = {name: summed[place] / summed[place + len(names)] for place, name in enumerate(names)}
        for name, metric in self._metrics.items():
            means[name] = float(metric.compute())
            metric.reset()
        self.reset()
        return means

    def reset(self) -> None:
        """Forget everything."""
        self.__init__()  # type: ignore[misc]

    def state_dict(self) -> dict[str, Any]:
        """Return the sums."""
        return {"batches": self.batches, "sums": dict(self._sums), "weights": dict(self._weights)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take sums back."""
        self.batches = int(state["batches"])
        self._sums, self._weights = dict(state["sums"]), dict(state["weights"])
