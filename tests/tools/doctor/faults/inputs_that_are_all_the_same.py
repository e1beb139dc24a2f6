"""A line of the data set returns the first picture for every index."""

from torch import nn
from torch.utils.data import TensorDataset

from tests.tools.doctor.parts import Network, adam, points
from treadle import Trainer

FAULT = "constant_data"

inputs, labels = points().tensors
model = Network()
Trainer(model, nn.CrossEntropyLoss(), adam(model), callbacks=()).train(
    TensorDataset(inputs[:1].repeat(256, 1), labels), 2, points(64, 1)
)
