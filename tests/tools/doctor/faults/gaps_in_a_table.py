"""Some values of a table are not there."""

from torch import nn
from torch.utils.data import TensorDataset

from tests.tools.doctor.parts import Network, adam, points
from treadle import Trainer

FAULT = "bad_values"

inputs, labels = points().tensors
inputs[::16, 2] = float("nan")
model = Network()
Trainer(model, nn.CrossEntropyLoss(), adam(model), callbacks=()).train(TensorDataset(inputs, labels), 2)
