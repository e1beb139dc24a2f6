"""The loss verb appends to a list, which a replayed step would not do."""

from typing import Any

from torch import nn

from tests.tools.doctor.parts import Network, adam, points
from treadle import Trainer

FAULT = "not_recordable"

seen: list[int] = []


class Counting(Trainer):
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        seen.append(len(batch[0]))  # planted
        return super().calculate_train_batch_loss(batch)


model = Network()
Counting(model, nn.CrossEntropyLoss(), adam(model), callbacks=()).train(points(), 2, points(64, 1))
