"""The evaluation data has the transform of the training data."""

from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from tests.tools.doctor.parts import Network, adam, points
from treadle import Trainer

FAULT = "evaluation_data"


class Jittered(Dataset[Any]):
    def __init__(self, data: Any) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        inputs, label = self.data[index]
        return inputs + 0.05 * torch.randn(4), label


model = Network()
Trainer(model, nn.CrossEntropyLoss(), adam(model), callbacks=()).train(Jittered(points()), 2, Jittered(points(64, 1)))
