"""Softmax over the samples of a batch instead of over classes."""

from torch import Tensor, nn

from tests.tools.doctor.parts import Network, adam, points
from treadle import Trainer

FAULT = "loss_inputs"


class Certain(Network):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs).softmax(0)


model = Certain()
Trainer(model, nn.CrossEntropyLoss(), adam(model), callbacks=()).train(points(), 2)
