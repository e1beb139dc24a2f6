"""A program without a fault: a small convolutional network with batch norm."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from tests.tools.doctor.parts import adam
from treadle import Trainer

torch.manual_seed(0)
pictures, labels = torch.randn(128, 1, 8, 8), torch.randint(3, (128,))
model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 3))
Trainer(model, nn.CrossEntropyLoss(), adam(model), callbacks=(), seed=0).train(TensorDataset(pictures, labels), 2)
