"""Classes are numbered from 1."""

from torch import nn
from torch.utils.data import TensorDataset

from tests.tools.doctor.parts import Network, adam, points
from treadle import Trainer

FAULT = "bad_labels"

inputs, labels = points().tensors
model = Network()
Trainer(model, nn.CrossEntropyLoss(), adam(model), callbacks=()).train(TensorDataset(inputs, labels + 1), 2)
