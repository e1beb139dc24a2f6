"""NLLLoss takes log-probabilities, and gets scores."""

import torch
from torch import nn

from tests.tools.doctor.parts import Network, adam, points
from treadle import Trainer

FAULT = "loss_inputs"

torch.manual_seed(0)
model = Network()
Trainer(model, nn.NLLLoss(), adam(model), callbacks=()).train(points(), 2)
