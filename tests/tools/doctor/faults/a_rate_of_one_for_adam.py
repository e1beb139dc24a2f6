"""A learning rate of 1 with Adam, which moves every weight by 1 in each step."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from tests.tools.doctor.parts import adam
from treadle import Trainer

FAULT = "diverges"

torch.manual_seed(0)
inputs = torch.randn(256, 4)
model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 1))
Trainer(model, nn.MSELoss(), adam(model, 1.0), callbacks=()).train(TensorDataset(inputs, inputs[:, :1]), 2)
