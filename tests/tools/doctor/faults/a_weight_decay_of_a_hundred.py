"""Weight decay was written in another unit."""

import torch
from torch import nn

from tests.tools.doctor.parts import Network, points
from treadle import Trainer

FAULT = "weight_decay"

model = Network()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=100.0)
Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=()).train(points(), 2)
