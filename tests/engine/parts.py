"""Small models, data and configs for the tests of this door."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from treadle.config import ConfigDict, LazyCall, get_config
from treadle.engine import DefaultTrainer, hooks


class Points(Dataset[dict[str, Tensor]]):
    """Points in the plane, labelled by the half they lie in."""

    def __init__(self, count: int = 64, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.points = torch.randn(count, 2, generator=generator)
        self.labels = (self.points.sum(dim=1) > 0).long()

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"inputs": self.points[index], "labels": self.labels[index]}


class Classifier(nn.Module):
    """A small classifier as this door expects it: losses in training, scores in evaluation."""

    def __init__(self, width: int = 8, dropout: float = 0.0) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Dropout(dropout))
        self.head = nn.Linear(width, 2)

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        scores = self.head(self.body(inputs))
        if not self.training:
            return {"prediction_scores": scores}
        return {"losses": nn.functional.cross_entropy(scores, labels)}


def iterations_of(trainer: DefaultTrainer) -> list[int]:
    """Return a list that takes the number of each iteration that a trainer makes from here on."""
    made: list[int] = []
    trainer.register_hooks([hooks.CallbackHook(before_step=lambda own: made.append(own.iter))])
    return made


def make_config(folder: Path, **train: Any) -> ConfigDict:
    """Return a config that trains for ten iterations, without evaluation, writing every iteration."""
    settings = get_config("common/train.py").train
    settings.update(
        output_dir=str(folder),
        train_iter=10,
        train_micro_batch_size=8,
        test_micro_batch_size=8,
        log_period=1,
        checkpointer={"period": 5},
        evaluation={"enabled": False, "eval_period": 5},
        dist={"device_type": "cpu"},
    )
    settings.update(train)
    return ConfigDict(
        {
            "model": LazyCall(Classifier)(dropout=0.0),
            "optim": LazyCall(torch.optim.SGD)(lr=0.1, momentum=0.9),
            "dataloader": {"train": LazyCall(Points)(), "test": [LazyCall(Points)(count=20, seed=1)]},
            "train": settings,
        }
    )
