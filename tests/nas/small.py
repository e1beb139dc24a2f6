"""Small spaces, data and trainers that the tests of one-shot search share."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from treadle import nas


class Small(nn.Module):
    """A choice of layers with one inside of it, a choice of inputs, batch norm and dropout."""

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        inner = nas.LayerChoice({"relu": nn.ReLU(), "tanh": nn.Tanh()}, label="inner")
        deep = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), inner)
        self.layer = nas.LayerChoice({"deep": deep, "flat": nn.Linear(4, 4), "none": nn.Identity()}, label="layer")
        self.skip = nas.InputChoice(2, 1, label="skip")
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.head(self.dropout(self.skip(self.layer(inputs), inputs)))
        return output


def small(kind: type[nn.Module] = Small, seed: int = 0, **options: Any) -> Any:
    """Return a space that always has the same weights."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return kind(**options)


def data(count: int = 48, seed: int = 0) -> TensorDataset:
    """Return samples of four numbers and one of three classes."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 4, generator=generator)
    classes = (inputs[:, 0] * inputs[:, 1] > 0).long() + (inputs[:, 2] > 0.5).long()
    return TensorDataset(inputs, classes)


def accuracy(outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Return the share of samples whose class was guessed."""
    return {"accuracy": (outputs.argmax(1) == targets).float().mean()}


def sgd(parameters: Any) -> torch.optim.Optimizer:
    """Return an optimizer with momentum and weight decay."""
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-3)


OPTIONS: dict[Any, dict[str, Any]] = {
    nas.DartsTrainer: {"arc_learning_rate": 0.05},
    nas.GumbelDartsTrainer: {"arc_learning_rate": 0.05},
    nas.ProxylessTrainer: {"arc_learning_rate": 0.05},
    nas.EnasTrainer: {"ctrl_steps_aggregate": 2, "ctrl_lr": 0.01},
    nas.SposTrainer: {"population": 3, "generations": 2, "parents": 2, "recalibration_batches": 2},
}
"""How each trainer is made to do something in a few steps."""


def make(kind: Any, model: nn.Module | None = None, **options: Any) -> Any:
    """Return a trainer: 24 samples to train on and 24 to validate on, three batches of eight each."""
    arguments = {
        "metrics": accuracy,
        "optimizer": sgd,
        "num_epochs": 2,
        "dataset": data(),
        "batch_size": 8,
        "seed": 1,
        "device": "cpu",
        "callbacks": (),
    }
    loss: Callable[..., Any] = options.pop("loss", F.cross_entropy)
    return kind(small() if model is None else model, loss, **(arguments | OPTIONS.get(kind, {}) | options))
