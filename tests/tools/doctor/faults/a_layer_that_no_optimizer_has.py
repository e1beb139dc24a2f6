"""The optimizer was given the last layer only, though all of them learn."""

import torch
from torch import nn

from tests.tools.doctor.parts import Network, points
from treadle import Trainer

FAULT = "not_optimized"

model = Network()
optimizer = torch.optim.AdamW(model.last.parameters(), lr=1e-3)
Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=()).train(points(), 2, points(64, 1))
