"""Training data is scaled, evaluation data is not."""

from torch import nn
from torch.utils.data import TensorDataset

from tests.tools.doctor.parts import Network, adam, points
from treadle import Trainer

FAULT = "evaluation_data"

inputs, labels = points(64, 1).tensors
model = Network()
Trainer(model, nn.CrossEntropyLoss(), adam(model), callbacks=()).train(
    points(), 2, TensorDataset(12.0 + 100 * inputs, labels)
)
