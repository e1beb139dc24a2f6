"""The rate is zero, as a warm-up that never ends has it."""

from torch import nn

from tests.tools.doctor.parts import Network, adam, points
from treadle import Trainer

FAULT = "no_learning"

model = Network()
Trainer(model, nn.CrossEntropyLoss(), adam(model, 0.0), callbacks=()).train(points(), 2)
