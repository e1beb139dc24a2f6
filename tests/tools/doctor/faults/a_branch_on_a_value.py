"""The forward pass takes another way where a value of the batch is large."""

from torch import Tensor, nn

from tests.tools.doctor.parts import Network, adam, points
from treadle import Trainer

FAULT = "blocks_device"


class Branching(Network):
    def forward(self, inputs: Tensor) -> Tensor:
        if inputs.abs().max() > 3.0:  # planted
            inputs = inputs.clamp(-3.0, 3.0)
        return super().forward(inputs)


model = Branching()
Trainer(model, nn.CrossEntropyLoss(), adam(model), callbacks=()).train(points(), 2, points(64, 1))
