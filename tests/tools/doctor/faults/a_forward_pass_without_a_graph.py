"""The forward pass is inside of no_grad, as that of an evaluation."""

import torch
from torch import Tensor, nn

from tests.tools.doctor.parts import Network, adam, points
from treadle import Trainer

FAULT = "fails"


class Still(Network):
    @torch.no_grad()
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs)


model = Still()
Trainer(model, nn.CrossEntropyLoss(), adam(model), callbacks=()).train(points(), 2)
