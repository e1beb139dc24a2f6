"""Predictions are a column and targets a row: each is compared with all others."""

from torch import nn
from torch.utils.data import TensorDataset

from tests.tools.doctor.parts import adam, points
from treadle import Trainer

FAULT = "loss_inputs"

inputs, labels = points().tensors
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
Trainer(model, nn.MSELoss(), adam(model), callbacks=()).train(TensorDataset(inputs, labels.float()), 2)
