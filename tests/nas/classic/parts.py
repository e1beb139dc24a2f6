"""Trainers and data that another process can import."""

from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from treadle import nas


class Colour(Enum):
    """A choice that is no text."""

    RED = 1


def points(count: int, seed: int = 0) -> TensorDataset:
    """Points in the plane, labelled by the half they lie in."""
    inputs = torch.randn(count, 2, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(inputs, (inputs.sum(dim=1) > 0).long())


@nas.recorded
class Shifted(Dataset[Any]):
    """A data set of your own that holds another one and a transform."""

    def __init__(self, inner: Any, transform: Any = None) -> None:
        self.inner, self.transform = inner, transform

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        sample, label = self.inner[index]
        return (sample if self.transform is None else self.transform(sample)), label


@nas.recorded
class Add:
    """A transform with an argument."""

    def __init__(self, amount: float) -> None:
        self.amount = amount

    def __call__(self, sample: Any) -> Any:
        return sample + self.amount


SGD = partial(torch.optim.SGD, lr=0.5)


@nas.register_trainer
class PointTrainer(nas.BaseTrainer):
    """Trains a classifier of points; it never calls `super().__init__()`."""

    def __init__(
        self,
        model: nn.Module,
        dataset: Any = None,
        optimizer: Any = SGD,
        epochs: int = 2,
        *,
        betas: tuple[float, float] = (0.9, 0.99),
        folder: Path = Path("data"),
        colour: Colour = Colour.RED,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.model = model
        self.dataset = points(32) if dataset is None else dataset
        self.optimizer, self.epochs = optimizer(model.parameters()), epochs
        self.betas, self.folder, self.colour, self.dtype = betas, folder, colour, dtype

    def fit(self) -> None:
        inputs = torch.stack([self.dataset[place][0] for place in range(len(self.dataset))])
        labels = torch.stack([self.dataset[place][1] for place in range(len(self.dataset))])
        for _ in range(self.epochs):
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(inputs), labels)
            loss.backward()
            self.optimizer.step()
            nas.report_intermediate_result(-loss)
        nas.report_final_result(self.model(inputs).argmax(1).eq(labels).float().mean())


@nas.register_trainer
class Loose(nas.BaseTrainer):
    """A trainer that takes whatever comes."""

    def __init__(self, model: Any, first: int, *rest: int, **options: Any) -> None:
        self.model, self.first, self.rest, self.options = model, first, rest, options

    def fit(self) -> None:
        """Do nothing."""


@nas.register_trainer
class Migrated(nas.BaseTrainer):
    """A trainer whose argument was once called `learning_rate`, and a percentage."""

    record_version = 2

    def __init__(self, model: Any, rate: float = 0.1) -> None:
        self.model, self.rate = model, rate

    @classmethod
    def migrate_record(cls, arguments: dict[str, Any], version: int) -> dict[str, Any]:
        return {"rate": arguments["learning_rate"] / 100} if version == 1 else arguments

    def fit(self) -> None:
        """Do nothing."""
