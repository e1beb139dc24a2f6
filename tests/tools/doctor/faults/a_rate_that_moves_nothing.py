"""The rate is so small that the weights are the same after the update."""

import torch
from torch import nn

from tests.tools.doctor.parts import Network, points
from treadle import Trainer

FAULT = "no_learning"

model = Network()
Trainer(model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=1e-12), callbacks=()).train(points(), 2)
