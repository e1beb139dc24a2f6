"""A table was joined with itself."""

from torch import nn
from torch.utils.data import TensorDataset

from tests.tools.doctor.parts import Network, adam, points
from treadle import Trainer

FAULT = "repeated_data"

inputs, labels = points().tensors
model = Network()
Trainer(model, nn.CrossEntropyLoss(), adam(model), callbacks=()).train(
    TensorDataset(inputs[:128].repeat(2, 1), labels[:128].repeat(2)), 2
)
