"""Labels were shuffled, and the inputs were not."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from tests.tools.doctor.parts import Network, adam, points
from treadle import Trainer

FAULT = "unrelated_labels"

torch.manual_seed(0)
inputs, labels = points(512).tensors
model = Network()
Trainer(model, nn.CrossEntropyLoss(), adam(model), callbacks=()).train(
    TensorDataset(inputs, labels[torch.randperm(512)]), 2, points(64, 1)
)
