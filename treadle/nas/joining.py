"""How several chosen tensors become one."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

REDUCTIONS = ("sum", "mean", "concat", "none")


def joined(tensors: Sequence[Tensor], reduction: str, like: Sequence[Tensor]) -> Any:
    """Return some tensors as one.

    A single one is returned as it is. No tensor at all is zeros for "sum" and "mean", a tensor without channels for
    "concat", and an empty list for "none".

    Args:
        tensors: The tensors that were chosen.
        reduction: "sum", "mean", "concat" along dimension 1, or "none" for the list itself.
        like: All that could have been chosen, for the shape of nothing.
    """
    if reduction == "none":
        return list(tensors)
    if not tensors:
        return like[0][:, :0] if reduction == "concat" else torch.zeros_like(like[0])
    if len(tensors) == 1:
        return tensors[0]
    if reduction == "concat":
        return torch.cat(list(tensors), dim=1)
    total = tensors[0]
    for tensor in tensors[1:]:
        total = total + tensor
    return total / len(tensors) if reduction == "mean" else total
