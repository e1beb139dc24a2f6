"""Bringing what is on a device to the host, with as few copies as can be."""

from typing import Any

import torch
from torch import Tensor


def read_values(values: list[Any]) -> list[Any]:
    """Bring scalar tensors among `values` to the host, with one copy per device and type.

    >>> read_values([torch.tensor(2.0), 3, "a", torch.tensor([1, 2])])
    [2.0, 3, 'a', [1, 2]]
    """
    try:
        # The common case, losses of one kind: no look at each of them is needed.
        if values and values[0].dim() == 0:
            return torch.stack(values).tolist()
    except (TypeError, RuntimeError, AttributeError):
        pass
    return _read_mixed(values)


def _read_mixed(values: list[Any]) -> list[Any]:
    result = list(values)
    alike: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for position, value in enumerate(values):
        if not isinstance(value, Tensor):
            continue
        if value.dim() == 0:
            alike.setdefault((value.device, value.dtype), []).append(position)
        else:
            result[position] = value.item() if value.numel() == 1 else value.tolist()
    for positions in alike.values():
        numbers = torch.stack([values[position] for position in positions]).tolist()
        for position, number in zip(positions, numbers, strict=True):
            result[position] = number
    return result
