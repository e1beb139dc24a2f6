"""The task of the Fashion-MNIST section, and the loop by hand that does it."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.job import LOSS_FUNC

Columns = tuple[Tensor, Tensor]

EVALUATION_BATCH = 1000
STUCK_S = 30


@dataclass(frozen=True)
class Task:
    """Train until the accuracy on the test images, looked at after each epoch, is high enough.

    Args:
        model: What to train, on its device.
        optimizer: Its optimizer.
        train_data: Images and labels, on the host.
        test_data: Those that accuracy is of, on the host.
        batch_size: Images in a batch.
        target: High enough.
        most_epochs: When to give up.
        seed: Of the order of the images.
        device: Where.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    train_data: Columns
    test_data: Columns
    batch_size: int
    target: float
    most_epochs: int
    seed: int
    device: torch.device

    def train_loader(self, workers: int) -> DataLoader[tuple[Tensor, ...]]:
        """Return a loader of the training images as one writes it."""
        return DataLoader(
            TensorDataset(*self.train_data),
            batch_size=self.batch_size,
            shuffle=True,
            num_workers=workers,
            persistent_workers=workers > 0,
            pin_memory=self.device.type == "cuda",
            timeout=STUCK_S if workers else 0,
            generator=torch.Generator().manual_seed(self.seed),
        )

    def test_loader(self) -> DataLoader[tuple[Tensor, ...]]:
        """Return a loader of the test images."""
        return DataLoader(TensorDataset(*self.test_data), batch_size=EVALUATION_BATCH)


def train_by_hand(task: Task, workers: int) -> list[float]:
    """Train with the loop that everybody could write; return the accuracy after each epoch."""
    loader, test_loader = task.train_loader(workers), task.test_loader()
    model, optimizer = task.model, task.optimizer
    accuracies: list[float] = []
    while len(accuracies) < task.most_epochs and max(accuracies, default=0.0) < task.target:
        model.train()
        for inputs, targets in moved(loader, task.device):
            optimizer.zero_grad()
            loss = LOSS_FUNC(model(inputs), targets)
            loss.backward()
            optimizer.step()
        accuracies.append(accuracy_of(model, moved(test_loader, task.device)))
    return accuracies


def moved(loader: DataLoader[tuple[Tensor, ...]], device: torch.device) -> Iterator[Columns]:
    """Yield the batches of a loader on the device."""
    for inputs, targets in loader:
        yield inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True)


@torch.no_grad()
def accuracy_of(model: nn.Module, batches: Iterator[Columns]) -> float:
    """Return the share of samples whose highest score is that of their class."""
    model.eval()
    right, count = [], 0
    for inputs, targets in batches:
        right.append((model(inputs).argmax(1) == targets).sum())
        count += len(targets)
    return torch.stack(right).sum().item() / count
