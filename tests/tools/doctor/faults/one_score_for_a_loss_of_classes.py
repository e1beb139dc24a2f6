"""One output for two classes: cross-entropy of one class is always 0."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from tests.tools.doctor.parts import adam, points
from treadle import Trainer

FAULT = "loss_inputs"

inputs, _ = points().tensors
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
Trainer(model, nn.CrossEntropyLoss(), adam(model), callbacks=()).train(
    TensorDataset(inputs, torch.zeros(256, dtype=torch.long)), 2
)
