"""Each sample takes milliseconds to read, in the process that trains."""

import time
from typing import Any

from torch import nn
from torch.utils.data import Dataset

from tests.tools.doctor.parts import Network, adam, points
from treadle import Trainer

FAULT = "slow_data"


class Slow(Dataset[Any]):
    def __init__(self) -> None:
        self.points = points()

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.004)
        return self.points[index]


model = Network()
Trainer(model, nn.CrossEntropyLoss(), adam(model), callbacks=()).train(Slow(), 2, per_device_batch_size=8)
