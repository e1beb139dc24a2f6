"""Data was augmented by copies with noise, and split afterwards."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from tests.tools.doctor.parts import Network, adam, points
from treadle import Trainer

FAULT = "evaluation_data"

torch.manual_seed(0)
(inputs, labels), (fresh, others) = points(256).tensors, points(32, 1).tensors
noisy = inputs[:32] + 0.01 * torch.randn(32, 4)
model = Network()
Trainer(model, nn.CrossEntropyLoss(), adam(model), callbacks=()).train(
    points(256), 2, TensorDataset(torch.cat([fresh, noisy]), torch.cat([others, labels[:32]]))
)
