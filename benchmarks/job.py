"""The training job that every contender does: a small MLP, AdamW, and batches that are ready beforehand."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader

FEATURES, HIDDEN, CLASSES, BATCH_SIZE = 64, 64, 10, 32
LOSS_FUNC = nn.CrossEntropyLoss()

Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Job:
    """What a contender is handed; it trains `model` in place, one epoch over `loader`, in order."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loader: DataLoader[Batch]
    batches: list[Batch]

    def weights(self) -> torch.Tensor:
        """Return every parameter in one flat copy."""
        return nn.utils.parameters_to_vector(self.model.parameters()).detach().clone()


def make_batches(steps: int, seed: int) -> list[Batch]:
    """Draw `steps` batches of random features and random classes."""
    generator = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(BATCH_SIZE, FEATURES, generator=generator),
            torch.randint(CLASSES, (BATCH_SIZE,), generator=generator),
        )
        for _ in range(steps)
    ]


def make_job(batches: Sequence[Batch], seed: int) -> Job:
    """Build a fresh job; the same `seed` gives the same initial weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.Linear(FEATURES, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, CLASSES),
        )
    ready = list(batches)
    loader: DataLoader[Batch] = DataLoader(ready, batch_size=None, shuffle=False)  # type: ignore[arg-type]
    return Job(model, torch.optim.AdamW(model.parameters()), loader, ready)
