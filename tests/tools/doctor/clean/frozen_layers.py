"""A program without a fault: a layer that is frozen on purpose is in no optimizer."""

import torch
from torch import nn

from tests.tools.doctor.parts import Network, points
from treadle import Trainer

torch.manual_seed(0)
model = Network()
model.first.requires_grad_(False)
optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=1e-3)
Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=(), seed=0).train(points(), 2, points(64, 1))
