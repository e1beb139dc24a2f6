"""The share to keep was written where the share to drop belongs."""

from torch import nn

from tests.tools.doctor.parts import Network, adam, points
from treadle import Trainer

FAULT = "dropout"

model = Network()
model.dropout = nn.Dropout(0.98)
Trainer(model, nn.CrossEntropyLoss(), adam(model), callbacks=()).train(points(), 2)
