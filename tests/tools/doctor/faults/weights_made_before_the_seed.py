"""The seed is given to the trainer, but the weights were drawn before."""

from torch import nn

from tests.tools.doctor.parts import Network, adam, points
from treadle import Trainer

FAULT = "not_repeatable"

model = Network()
Trainer(model, nn.CrossEntropyLoss(), adam(model), callbacks=(), seed=0).train(points(), 2, points(64, 1))
