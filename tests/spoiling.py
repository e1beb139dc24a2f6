"""Data and models whose losses or gradients are nan or infinite at a given step."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tests.interrupting import samples

IN_ORDER: dict[str, Any] = {"per_device_batch_size": 4, "train_dataloader_kwargs": {"shuffle": False}}
"""Six batches of four samples, as they come."""


def spoilt(*steps: int, value: float = math.nan) -> TensorDataset:
    """The usual samples, with a target that is not finite in the batches of these steps."""
    inputs, targets = samples().tensors
    targets = targets.clone()
    for step in steps:
        targets[4 * step - 2] = value
    return TensorDataset(inputs, targets)


def without(*steps: int) -> TensorDataset:
    """The usual samples without the batches of these steps."""
    kept = [row for row in range(24) if row // 4 + 1 not in steps]
    inputs, targets = samples().tensors
    return TensorDataset(inputs[kept], targets[kept])


class _Spoil(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, outputs: Tensor, factor: Tensor) -> Tensor:
        ctx.save_for_backward(factor)
        return outputs.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0] * ctx.saved_tensors[0], None


class BadGradient(nn.Linear):
    """A model whose loss is fine and whose gradient is not, where the second input is exactly 7."""

    def __init__(self) -> None:
        super().__init__(2, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        factor = torch.where(inputs[:, 1:] == 7, math.nan, 1.0)
        outputs: Tensor = _Spoil.apply(super().forward(inputs), factor)  # type: ignore[no-untyped-call]
        return outputs


def seeded(build: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build()


def with_bad_gradient(step: int) -> TensorDataset:
    inputs, targets = samples().tensors
    inputs = inputs.clone()
    inputs[4 * step - 2, 1] = 7
    return TensorDataset(inputs, targets)
