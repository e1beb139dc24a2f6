"""Micro-batches that shrink when memory runs out, while the batch stays what it was."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from treadle.data import Batch, size_of


class MicroBatchSplits:
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
        return value[first:last] if value.dim() and len(value) == size else value
    if isinstance(value, Mapping):
        return {key: _rows(item, size, first, last) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_rows(item, size, first, last) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(_rows(item, size, first, last) for item in value)
    return value
