"""Metrics that the trainer keeps for the user: updated on the device, reduced across ranks, reset."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from treadle.errors import ConfigError

VERBS = ("update", "compute", "reset")


class EvaluationMetrics:
    """The metrics given to a trainer: torchmetrics, or anything with `update`, `compute` and `reset`."""

    def __init__(self, metrics: Any = None) -> None:
        self._metrics = _by_name(metrics)
        for name, metric in self._metrics.items():
            missing = [verb for verb in VERBS if not callable(getattr(metric, verb, None))]
            if missing:
                raise ConfigError(
                    f"metrics[{name!r}] is a {type(metric).__name__} without {missing}; pass a torchmetrics Metric"
                )

    def __bool__(self) -> bool:
        return bool(self._metrics)

    def to(self, device: torch.device) -> None:
        """Move the metrics' states to `device`."""
        for metric in self._metrics.values():
            if hasattr(metric, "to"):
                metric.to(device)

    def within(self, group: Any) -> None:
        """Have metrics of torchmetrics take in what the processes of `group` saw, and no others."""
        for metric in self._metrics.values():
            for part in _parts(metric):
                if hasattr(part, "process_group"):
                    # Ranks of one tensor or pipeline group see the same samples, which would count several times.
                    part.process_group = group

    def update(self, outputs: Any, targets: Any) -> None:
        """Take in the outputs and targets of one batch."""
        for metric in self._metrics.values():
            metric.update(outputs, targets)
            # Checking the values reads the device, so torchmetrics does it for the first batch only.
            for part in _parts(metric):
                if getattr(part, "validate_args", False):
                    part.validate_args = False

    def compute(self) -> dict[str, Any]:
        """Return every value by name, over all ranks, and start anew."""
        values: dict[str, Any] = {}
        for name, metric in self._metrics.items():
            value = metric.compute()
            values.update(value if isinstance(value, Mapping) else {name: value})
            metric.reset()
        return values

    def reset(self) -> None:
        """Forget what was taken in."""
        for metric in self._metrics.values():
            metric.reset()


def _by_name(metrics: Any) -> dict[str, Any]:
    if metrics is None:
        return {}
    if hasattr(metrics, "update") and hasattr(metrics, "compute"):
        return {type(metrics).__name__.lower(): metrics}
    if isinstance(metrics, Mapping):
        return dict(metrics)
    raise ConfigError(f"metrics={metrics!r}: pass a dict of names to torchmetrics metrics, or a MetricCollection")


def _parts(metric: Any) -> Iterator[Any]:
    yield metric
    if hasattr(metric, "modules"):
        yield from metric.modules()
