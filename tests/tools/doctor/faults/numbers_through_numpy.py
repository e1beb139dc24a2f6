"""Outputs go through NumPy inside of the loss."""

from typing import Any

import numpy as np
from torch import nn

from tests.tools.doctor.parts import Network, adam, points
from treadle import Trainer

FAULT = "blocks_device"


class Weighted(Trainer):
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        inputs, labels = batch
        scores = self.model(inputs)
        share = np.bincount(labels.cpu().numpy(), minlength=2) / len(labels)  # planted
        shares.append(share)
        return {"loss": nn.functional.cross_entropy(scores, labels), "batch_size": len(labels)}


shares: list[Any] = []
model = Network()
Weighted(model, nn.CrossEntropyLoss(), adam(model), callbacks=()).train(points(), 2)
