"""Features are detached, as if the layers below were frozen."""

import torch
from torch import Tensor, nn

from tests.tools.doctor.parts import Network, adam, points
from treadle import Trainer

FAULT = "no_gradient"


class Detached(Network):
    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.relu(self.norm(self.first(inputs))).detach()
        scores: Tensor = self.last(hidden)
        return scores


model = Detached()
Trainer(model, nn.CrossEntropyLoss(), adam(model), callbacks=()).train(points(), 2, points(64, 1))
