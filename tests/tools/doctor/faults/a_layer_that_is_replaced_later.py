"""A layer was replaced after the optimizer had been built."""

from torch import nn

from tests.tools.doctor.parts import Network, adam, points
from treadle import Trainer

FAULT = "not_optimized"

model = Network()
optimizer = adam(model)
model.last = nn.Linear(16, 2)
Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=()).train(points(), 2, points(64, 1))
