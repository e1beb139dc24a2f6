"""Every label is 1: somebody compared before the cast."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from tests.tools.doctor.parts import Network, adam, points
from treadle import Trainer

FAULT = "constant_data"

inputs, labels = points().tensors
model = Network()
Trainer(model, nn.CrossEntropyLoss(), adam(model), callbacks=()).train(
    TensorDataset(inputs, torch.ones_like(labels)), 2
)
