"""A model under test, and what it was built on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from treadle.recsys import Config, Interaction


@dataclass
class BuiltModel:
    """A model, its config and the loaders that it was built on."""

    config: Config
    train: Any
    valid: Any
    model: Any

    def batch(self, index: int = 0) -> Interaction:
        """Return a training batch."""
        batch: Interaction = self.train.batch_at(0, index)
        return batch

    def loss(self, batch: Interaction) -> Tensor:
        """Return what the model is trained on."""
        loss: Tensor = self.model.calculate_loss(batch)
        return loss


def train_steps(built: BuiltModel, steps: int, rate: float = 0.01, batches: Sequence[int] = (0,)) -> list[float]:
    """Train on some batches in turn with Adam; return the losses."""
    optimizer = torch.optim.Adam([one for one in built.model.parameters() if one.requires_grad], lr=rate)
    drawn = [built.batch(index) for index in batches]
    losses = []
    built.model.train()
    for step in range(steps):
        optimizer.zero_grad()
        loss = built.loss(drawn[step % len(drawn)])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def fill(model: nn.Module, seed: int = 1) -> None:
    """Draw all weights anew and large, so that everything in a formula shows."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for one in model.parameters():
            one.copy_(torch.randn(one.shape, generator=generator) * 0.5)


def assert_close_in_bf16(built: BuiltModel, *, apart: float = 0.0) -> None:
    """Check that loss and gradients are finite in half precision, and the loss near to that in single precision."""
    built.model.train()
    torch.manual_seed(0)
    exact = built.loss(built.batch())
    torch.manual_seed(0)
    with torch.autocast("cpu", torch.bfloat16):
        loss = built.loss(built.batch())
    loss.backward()
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(exact.item(), rel=0.05, abs=apart)
    assert all(one.grad.isfinite().all() for one in built.model.parameters() if one.grad is not None)


def assert_one_row_is_enough(built: BuiltModel) -> None:
    """Check that a batch of one row can be trained on."""
    built.model.train()
    loss = built.loss(built.batch()[:1])
    loss.backward()
    assert loss.isfinite()
