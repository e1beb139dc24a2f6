"""The head was replaced before everything was frozen, not after."""

from torch import nn

from tests.tools.doctor.parts import Network, adam, points
from treadle import Trainer

FAULT = "frozen"

model = Network()
optimizer = adam(model)
model.requires_grad_(False)
Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=()).train(points(), 2)
