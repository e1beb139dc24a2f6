"""The training job that every contender does: a small MLP, AdamW, and batches that are ready beforehand."""

from collections.abc import Sequence
from dataclasses import dataclass
from time import process_time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FEATURES, HIDDEN, CLASSES, BATCH_SIZE = 64, 64, 10, 32
LOSS_FUNC = nn.CrossEntropyLoss()

Batch = tuple[torch.Tensor, torch.Tensor]


class ReadyBatches(Dataset[Batch]):
    """Batches made before the clock starts, which notes the CPU time at which the first one is fetched.

    The clock is read here because this is the one place that every trainer passes on its way into the loop,
    and that no trainer copies or wraps; it costs the other fetches one comparison, the same for everybody.
    """

    def __init__(self, batches: Sequence[Batch]) -> None:
        self.batches = batches
        self.first_fetch_at: float | None = None

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> Batch:
        if index == 0 and self.first_fetch_at is None:
            self.first_fetch_at = process_time()
        return self.batches[index]


@dataclass(frozen=True)
class Job:
    """What a contender is handed; it trains `model` in place, one epoch over `loader`, in order."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loader: DataLoader[Batch]
    dataset: ReadyBatches

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
    dataset = ReadyBatches(batches)
    loader = DataLoader(dataset, batch_size=None, shuffle=False)
    return Job(model, torch.optim.AdamW(model.parameters()), loader, dataset)
