"""Evaluation draws samples with replacement: some count twice, others never."""

from torch import nn
from torch.utils.data import DataLoader, RandomSampler

from tests.tools.doctor.parts import Network, adam, points
from treadle import Trainer

FAULT = "evaluation_data"

data = points(64, 1)
loader = DataLoader(data, batch_size=16, sampler=RandomSampler(data, replacement=True))
model = Network()
Trainer(model, nn.CrossEntropyLoss(), adam(model), callbacks=()).train(points(), 2, loader)
