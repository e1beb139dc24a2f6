"""The small models and data that the programs of this folder train, all in float64."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from torchmetrics.classification import MulticlassAccuracy

from treadle import Trainer, TrainResult

GLOBAL_BATCH = 12
"""Samples per micro-batch over all ranks: it divides by one, two and three processes."""


def samples(count: int, *, seed: int = 0) -> TensorDataset:
    """Return `count` samples of four inputs and one of three classes."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 4, generator=generator, dtype=torch.float64)
    return TensorDataset(inputs, torch.randint(3, (count,), generator=generator))


def classifier(*, seed: int = 7) -> nn.Module:
    """Return a model without dropout and batch norm, the same on every rank."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def sgd(model: nn.Module, lr: float = 0.1) -> torch.optim.Optimizer:
    """Return an optimizer whose update shows every factor that a gradient is wrong by."""
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


def trainer_of(model: nn.Module, kind: type[Trainer] = Trainer, **kwargs: Any) -> Trainer:
    """Return a trainer with accuracy and a seed; `kwargs` win over these."""
    settings: dict[str, Any] = {"callbacks": (), "seed": 3, "metrics": {"accuracy": accuracy()}} | kwargs
    loss = settings.pop("loss_func", nn.CrossEntropyLoss())
    optimizer = settings.pop("optimizer") if "optimizer" in settings else sgd(model)
    return kind(model, loss, optimizer, **settings)


def accuracy() -> MulticlassAccuracy:
    """Return the share of samples whose class was guessed."""
    return MulticlassAccuracy(num_classes=3, average="micro")


def per_device(trainer: Trainer) -> int:
    """Return the batch size that gives the global batch on any number of processes."""
    return GLOBAL_BATCH // trainer.processes.size


def flat(model: nn.Module) -> Tensor:
    """Return all weights and buffers as one vector."""
    return torch.cat([value.detach().double().reshape(-1) for value in model.state_dict().values()])


def outcome(trainer: Trainer, result: TrainResult) -> dict[str, Any]:
    """Return what a run must not depend on the number of processes in: weights, losses, metrics, counts."""
    return {
        "weights": flat(trainer.model),
        "history": result.history,
        "logged": [float(value) for value in trainer.storage.series("train_loss").values],
        "steps": result.steps,
        "samples": trainer.processes.reduce([float(trainer.progress.samples)])[0],
    }


class BadLoss(Trainer):
    """Makes the loss of the last rank bad at one step."""

    bad_step, factor = 0, 1.0

    @classmethod
    def at(cls, bad_step: int, factor: float = float("nan")) -> type[Trainer]:
        """Return the class for one step and one factor."""
        return type(cls.__name__, (cls,), {"bad_step": bad_step, "factor": factor})

    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        output = super().calculate_train_batch_loss(batch)
        last = self.processes.rank == self.processes.size - 1
        if last and self.progress.step + 1 == self.bad_step:
            output["loss"] = output["loss"] * self.factor
        return output
