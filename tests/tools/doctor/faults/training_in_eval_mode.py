"""The forward pass puts the model into evaluation mode, and leaves it there."""

from torch import Tensor, nn

from tests.tools.doctor.parts import Network, adam, points
from treadle import Trainer

FAULT = "wrong_mode"


class Quiet(Network):
    def forward(self, inputs: Tensor) -> Tensor:
        self.eval()
        return super().forward(inputs)


model = Quiet()
Trainer(model, nn.CrossEntropyLoss(), adam(model), callbacks=()).train(points(), 2, points(64, 1))
