"""The last batch of an epoch has one sample, of which no batch norm can take a deviation."""

from torch import nn

from tests.tools.doctor.parts import adam, points
from treadle import Trainer

FAULT = "batch_norm"

model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
Trainer(model, nn.CrossEntropyLoss(), adam(model), callbacks=()).train(points(257), 2, per_device_batch_size=16)
