"""Micro-batches that shrink when memory runs out, while the batch stays what it was."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from treadle.data import Batch, TakesRows, size_of
from treadle.events import LossTracker
from treadle.loop.metrics import TrainingMetrics


class OomRetry:
    """Into how many parts each micro-batch is cut; chosen once, and saved with the run."""

    def __init__(self) -> None:
        self.parts = 1

    def halve(self) -> None:
        """Cut twice as often from now on."""
        self.parts *= 2

    def cut(self, window: list[Batch]) -> list[Batch]:
        """Return the micro-batches of `window`, each cut into parts."""
        return window if self.parts == 1 else [part for batch in window for part in split_batch(batch, self.parts)]

    def state_dict(self) -> dict[str, Any]:
        """Return the number of parts."""
        return {"parts": self.parts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the number of parts."""
        self.parts = int(state["parts"])


class BeforeAttempt:
    """What an attempt that runs out of memory may have moved already: buffers, losses and metrics that were noted."""

    def __init__(self, model: nn.Module, losses: LossTracker, metrics: TrainingMetrics) -> None:
        self._model = model
        # Batch norms move in the forward pass, before memory runs out. The copy is the price of `microbatch="auto"` per
        # step; weights need none, for no attempt is repeated once an optimizer has stepped.
        self._buffers = [buffer.detach().clone() for buffer in model.buffers()]
        self._losses = losses
        self._mark = losses.mark()
        self._metrics, self._measured = metrics, copy.deepcopy(metrics.state_dict()) if metrics.kept else None

    def restore(self) -> None:
        """Put everything back."""
        with torch.no_grad():
            for buffer, before in zip(self._model.buffers(), self._buffers, strict=True):
                buffer.copy_(before)
        self._losses.rewind(self._mark)
        if self._measured is not None:
            self._metrics.load_state_dict(self._measured)


def split_batch(batch: Batch, parts: int) -> list[Batch]:
    """Cut a batch along its samples into at most `parts` batches of nearly equal size.

    >>> import torch
    >>> [size_of(part) for part in split_batch((torch.zeros(5, 2), torch.zeros(5)), 2)]
    [3, 2]
    """
    size = size_of(batch)
    parts = min(parts, size)
    bounds = [(size * place // parts, size * (place + 1) // parts) for place in range(parts)]
    longest_first = sorted(bounds, key=lambda bound: bound[0] - bound[1])
    return [_rows(batch, size, *bound) for bound in (longest_first if parts > 1 else bounds)]


def _rows(value: Any, size: int, first: int, last: int) -> Any:
    if isinstance(value, Tensor):
        # What has no row for each sample, such as a table all of them share, goes with every part as it is.
        return value[first:last] if value.dim() and len(value) == size else value
    if isinstance(value, TakesRows):
        return value.take_rows(first, last) if len(value) == size else value
    if isinstance(value, Mapping):
        return {key: _rows(item, size, first, last) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_rows(item, size, first, last) for item in value))
    if isinstance(value, list) and len(value) == size and not any(_is_column(item, size) for item in value):
        return value[first:last]
    if isinstance(value, (list, tuple)):
        return type(value)(_rows(item, size, first, last) for item in value)
    return value


def _is_column(value: Any, size: int) -> bool:
    """Whether `value` has an entry for each sample itself, so that a list of such is no list of samples."""
    return isinstance(value, Tensor) and value.dim() > 0 and len(value) == size
