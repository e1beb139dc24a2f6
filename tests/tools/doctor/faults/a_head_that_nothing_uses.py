"""The model has a second head that its forward pass forgot."""

from torch import nn

from tests.tools.doctor.parts import Network, adam, points
from treadle import Trainer

FAULT = "no_gradient"


class TwoHeads(Network):
    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(16, 3)


model = TwoHeads()
Trainer(model, nn.CrossEntropyLoss(), adam(model), callbacks=()).train(points(), 2, points(64, 1))
