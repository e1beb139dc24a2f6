"""Rows of a table were sorted before their targets were looked up."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from tests.tools.doctor.parts import adam
from treadle import Trainer

FAULT = "unrelated_labels"

torch.manual_seed(0)
inputs = torch.randn(512, 6)
targets = inputs[:, :1] - 2 * inputs[:, 1:2]
inputs = inputs[inputs[:, 5].argsort()]
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
Trainer(model, nn.MSELoss(), adam(model), callbacks=()).train(TensorDataset(inputs, targets), 2)
