"""A learning rate of 50, with plain SGD."""

import torch
from torch import nn

from tests.tools.doctor.parts import Network, points
from treadle import Trainer

FAULT = "diverges"

torch.manual_seed(0)
model = Network()
Trainer(model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=50), callbacks=()).train(points(), 2)
