"""A decay was written for ten times the steps that the run has."""

from functools import partial

from torch import nn
from torch.optim.lr_scheduler import LinearLR

from tests.tools.doctor.parts import Network, adam, points
from treadle import Trainer

FAULT = "schedule_length"

model = Network()
Trainer(model, nn.CrossEntropyLoss(), adam(model), callbacks=()).train(
    points(), 2, create_scheduler_fn=partial(LinearLR, start_factor=1.0, end_factor=0.01, total_iters=640)
)
