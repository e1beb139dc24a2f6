"""The loss is read on the host in every step, to keep a curve."""

from typing import Any

from torch import nn

from tests.tools.doctor.parts import Network, adam, points
from treadle import Trainer

FAULT = "blocks_device"

curve: list[float] = []


class Curved(Trainer):
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        output = super().calculate_train_batch_loss(batch)
        curve.append(output["loss"].item())  # planted
        return output


model = Network()
Curved(model, nn.CrossEntropyLoss(), adam(model), callbacks=()).train(points(), 2, points(64, 1))
