"""The loss takes the logarithm of a probability that can be zero."""

from torch import Tensor, nn

from tests.tools.doctor.parts import Network, adam, points
from treadle import Trainer

FAULT = "not_finite"


class Logarithm(nn.Module):
    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        chosen = scores.gather(1, labels[:, None]).clamp(0, 1)
        return -chosen.log().mean()


model = Network()
Trainer(model, Logarithm(), adam(model), callbacks=()).train(points(), 2, points(64, 1))
