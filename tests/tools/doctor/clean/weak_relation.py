"""A program without a fault: much noise, of which a little can be predicted."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from tests.tools.doctor.parts import adam
from treadle import Trainer

torch.manual_seed(0)
inputs = torch.randn(1200, 5)
targets = 0.3 * inputs[:, :1] + torch.randn(1200, 1)
model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1))
Trainer(model, nn.MSELoss(), adam(model), callbacks=(), seed=0).train(
    TensorDataset(inputs[:1000], targets[:1000]), 2, TensorDataset(inputs[1000:], targets[1000:])
)
