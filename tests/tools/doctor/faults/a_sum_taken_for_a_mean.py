"""The loss is a sum over the batch, which the trainer is not told: larger batches learn faster."""

from torch import nn

from tests.tools.doctor.parts import Network, adam, points
from treadle import Trainer

FAULT = "accumulation"

model = Network()
Trainer(model, nn.CrossEntropyLoss(reduction="sum"), adam(model), callbacks=()).train(
    points(), 2, points(64, 1), gradient_accumulation_steps=2
)
