"""The rate is a million times too small for the length of the run."""

import torch
from torch import nn

from tests.tools.doctor.parts import Network, points
from treadle import Trainer

FAULT = "no_learning"

model = Network()
Trainer(model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=1e-7), callbacks=()).train(points(), 2)
