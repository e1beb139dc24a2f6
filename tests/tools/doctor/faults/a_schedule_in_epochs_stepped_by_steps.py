"""A cosine that was meant to last for the epochs is over after as many steps."""

from functools import partial

from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from tests.tools.doctor.parts import Network, adam, points
from treadle import Trainer

FAULT = "schedule_length"

epochs = 4
model = Network()
Trainer(model, nn.CrossEntropyLoss(), adam(model), callbacks=()).train(
    points(), epochs, create_scheduler_fn=partial(CosineAnnealingLR, T_max=epochs)
)
