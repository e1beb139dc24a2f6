"""A program without a fault: every default."""

import torch
from torch import nn

from tests.tools.doctor.parts import Network, adam, points
from treadle import Trainer

torch.manual_seed(0)
model = Network()
Trainer(model, nn.CrossEntropyLoss(), adam(model), callbacks=(), seed=0).train(points(), 2, points(64, 1))
