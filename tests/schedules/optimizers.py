"""What the tests of schedules move the rates of."""

from typing import Any

import torch
from torch.optim import SGD


def an_optimizer(lr: float = 1.0, second_lr: float = 0.25) -> SGD:
    """Return an optimizer of two groups, each with a rate of its own."""
    groups = [{"params": [torch.zeros(1)]}, {"params": [torch.zeros(1)], "lr": second_lr}]
    return SGD(groups, lr=lr)


def rates(scheduler: Any, updates: int) -> list[float]:
    """Return the rate of the first group that each of the first updates runs at."""
    seen = []
    for _ in range(updates):
        seen.append(scheduler.optimizer.param_groups[0]["lr"])
        scheduler.optimizer.step()
        scheduler.step()
    return seen
