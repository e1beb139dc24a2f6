"""Batches made larger, to see how much fits."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from treadle.data import Batch, TakesRows, size_of


def repeated(batch: Batch, samples: int) -> Batch | None:
    """Return a batch of `samples` samples: those of `batch`, over and over; None if nobody knows how.

    >>> repeated((torch.tensor([1, 2]), {"weight": torch.tensor([0.5, 0.25])}), 3)
    (tensor([1, 2, 1]), {'weight': tensor([0.5000, 0.2500, 0.5000])})
    """
    size = size_of(batch)
    return None if _has_rows_of_its_own(batch) else _repeated(batch, size, torch.arange(samples) % size)


def _has_rows_of_its_own(value: Any) -> bool:
    if isinstance(value, TakesRows):
        return True
    inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    return any(map(_has_rows_of_its_own, inside))


def _repeated(value: Any, size: int, rows: Tensor) -> Any:
    if isinstance(value, Tensor):
        return value[rows.to(value.device)] if value.dim() and len(value) == size else value
    if isinstance(value, Mapping):
        return {key: _repeated(item, size, rows) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_repeated(item, size, rows) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(_repeated(item, size, rows) for item in value)
    return value
