"""Passes over the training data: which loss and which optimizer an epoch has, and what follows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer


@dataclass(frozen=True, kw_only=True)
class Pass:
    """A part of an epoch that goes through the training data.

    Args:
        name: What it is called in messages and metrics.
        loss: Takes an interaction and returns its loss: a tensor, or a tuple of tensors to be added up.
        optimizer: What updates the weights.
        parameters: What it trains; None for all that the optimizer holds.
        times: How often it goes through the data.
        before: Called with the number of the epoch when it begins.
        after: Called when it is done.
        is_due: Tells of an epoch whether the pass is made in it; None for always.
        data: Takes the training data and returns what of it the pass goes through; None for all of it.
        counts: Whether its loss is part of what the epoch reports as its own.
    """

    name: str
    loss: Callable[[Any], Any]
    optimizer: Optimizer
    parameters: Sequence[nn.Parameter] | None = None
    times: int = 1
    before: Callable[[int], None] | None = None
    after: Callable[[], None] | None = None
    is_due: Callable[[int], bool] | None = None
    data: Callable[[Any], Any] | None = None
    counts: bool = True

    def is_made(self, epoch: int) -> bool:
        """Whether the pass is made in an epoch."""
        return self.is_due is None or self.is_due(epoch)
