"""Evaluation data is padded to whole batches by repeating its first samples."""

from torch import nn
from torch.utils.data import ConcatDataset, Subset

from tests.tools.doctor.parts import Network, adam, points
from treadle import Trainer

FAULT = "evaluation_data"

data = points(60, 1)
padded = ConcatDataset([data, Subset(data, [0, 1, 2, 3])])
model = Network()
Trainer(model, nn.CrossEntropyLoss(), adam(model), callbacks=()).train(points(), 2, padded)
