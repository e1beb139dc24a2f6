"""Pictures are divided by 255 by the data set, and once more by the transform."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from tests.tools.doctor.parts import adam
from treadle import Trainer

FAULT = "input_scale"

torch.manual_seed(0)
pictures = torch.randint(256, (128, 1, 8, 8)).float() / 255 / 255
labels = (pictures.mean((1, 2, 3)) > 0.5 / 255).long()
model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
Trainer(model, nn.CrossEntropyLoss(), adam(model), callbacks=()).train(TensorDataset(pictures, labels), 2)
