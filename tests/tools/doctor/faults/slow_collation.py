"""Batches are joined by a function that does much for each of them."""

import time
from typing import Any

from torch import nn
from torch.utils.data import default_collate

from tests.tools.doctor.parts import Network, adam, points
from treadle import Trainer

FAULT = "slow_data"


def join(samples: list[Any]) -> Any:
    time.sleep(0.03)
    return default_collate(samples)


model = Network()
trainer = Trainer(model, nn.CrossEntropyLoss(), adam(model), callbacks=())
trainer.train(list(points()), 2, per_device_batch_size=8, collate_fn=join)
