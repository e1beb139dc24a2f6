"""A program without a fault: twenty samples of two whole numbers, over and over."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from tests.tools.doctor.parts import adam
from treadle import Trainer

torch.manual_seed(0)
inputs = torch.tensor([[x, y] for x in range(5) for y in range(4)], dtype=torch.float32)
targets = inputs.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
data = TensorDataset(inputs[::2], targets[::2])
Trainer(model, nn.MSELoss(), adam(model, 1e-2), callbacks=(), seed=0).train(
    data, 10, TensorDataset(inputs[1::2], targets[1::2]), per_device_batch_size=4
)
