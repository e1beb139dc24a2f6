"""A bias is so low that no unit of the layer ever answers."""

from torch import nn

from tests.tools.doctor.parts import Network, adam, points
from treadle import Trainer

FAULT = "no_gradient"

model = Network()
model.norm = nn.Identity()  # type: ignore[assignment]
nn.init.constant_(model.first.bias, -100.0)
Trainer(model, nn.CrossEntropyLoss(), adam(model), callbacks=()).train(points(), 2, points(64, 1))
