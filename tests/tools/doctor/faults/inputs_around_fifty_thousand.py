"""Inputs are prices, as they are."""

from torch import nn
from torch.utils.data import TensorDataset

from tests.tools.doctor.parts import adam, points
from treadle import Trainer

FAULT = "input_scale"

inputs, labels = points().tensors
model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
Trainer(model, nn.CrossEntropyLoss(), adam(model), callbacks=()).train(TensorDataset(5e4 + 1e3 * inputs, labels), 2)
