"""A dropout function that does not know that the model is evaluated."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.tools.doctor.parts import Network, adam, points
from treadle import Trainer

FAULT = "wrong_mode"


class Functional(Network):
    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(functional.dropout(torch.relu(self.norm(self.first(inputs))), 0.2))  # planted


torch.manual_seed(0)
model = Functional()
Trainer(model, nn.CrossEntropyLoss(), adam(model), callbacks=()).train(points(), 2, points(64, 1))
