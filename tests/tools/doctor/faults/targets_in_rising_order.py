"""A table is sorted by its target, and read in that order."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from tests.tools.doctor.parts import adam
from treadle import Trainer

FAULT = "data_order"

torch.manual_seed(0)
inputs = torch.randn(256, 4)
targets = inputs.sum(1, keepdim=True)
order = targets[:, 0].argsort()
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
Trainer(model, nn.MSELoss(), adam(model), callbacks=()).train(
    TensorDataset(inputs[order], targets[order]),
    2,
    per_device_batch_size=16,
    train_dataloader_kwargs={"shuffle": False},
)
