"""A program without a fault: nine of ten labels are the same, and batches are small."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from tests.tools.doctor.parts import Network, adam
from treadle import Trainer

torch.manual_seed(0)
labels = (torch.rand(400) < 0.1).long()
inputs = torch.randn(400, 4) + labels[:, None]
model = Network()
Trainer(model, nn.CrossEntropyLoss(), adam(model), callbacks=(), seed=0).train(
    TensorDataset(inputs[:320], labels[:320]),
    2,
    TensorDataset(inputs[320:], labels[320:]),
    per_device_batch_size=4,
)
