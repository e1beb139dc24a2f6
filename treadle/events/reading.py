"""Bringing what is on a device to the host, with one copy."""

from typing import Any

import torch
from torch import Tensor

from treadle.events.pending import PendingNumber

_PLAIN = frozenset({bool, int, float, str})
"""Kinds of values that are on the host already."""


def read_values(values: list[Any]) -> list[Any]:
    """Bring the tensors among `values` to the host, with one copy per device; a single number as a number.

    >>> read_values([torch.tensor(2.0), 3, "a", torch.tensor([1, 2])])
    [2.0, 3, 'a', [1, 2]]
    """
    kinds = set(map(type, values))
    if kinds == {PendingNumber}:
        return [value.read() for value in values]
    result = list(values)
    if kinds <= _PLAIN:
        return result
    places: dict[torch.device, list[int]] = {}
    for place, value in enumerate(values):
        if isinstance(value, PendingNumber):
            result[place] = value.read()
        elif isinstance(value, Tensor):
            places.setdefault(value.device, []).append(place)
    for found in places.values():
        for place, number in zip(found, _read_alike([values[place] for place in found]), strict=True):
            result[place] = number
    return result


def _read_alike(tensors: list[Tensor]) -> list[Any]:
    """Read tensors of one device."""
    first = tensors[0].dtype
    if all(tensor.dtype is first and tensor.dim() == 0 for tensor in tensors):
        numbers: list[Any] = torch.stack(tensors).tolist()
        return numbers
    return _read_mixed(tensors)


def _read_mixed(tensors: list[Tensor]) -> list[Any]:
    """Read tensors of several types or shapes: as bytes, for turning them into one type would change them."""
    # The widest types first, so that each number stands at a multiple of its size.
    order = sorted(range(len(tensors)), key=lambda place: -tensors[place].element_size())
    flat = [tensors[place].detach().reshape(-1).view(torch.uint8) for place in order]
    pieces = torch.split(torch.cat(flat).cpu(), [len(piece) for piece in flat])
    result: list[Any] = [None] * len(tensors)
    for place, piece in zip(order, pieces, strict=True):
        shape = tensors[place].shape if tensors[place].numel() != 1 else ()
        result[place] = piece.view(tensors[place].dtype).reshape(shape).tolist()
    return result
