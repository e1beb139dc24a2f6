"""The model draws noise from a generator of its own, seeded by the clock."""

import numpy as np
import torch
from torch import Tensor, nn

from tests.tools.doctor.parts import Network, adam, points
from treadle import Trainer

FAULT = "not_repeatable"


class Noisy(Network):
    def __init__(self) -> None:
        super().__init__()
        self.generator = np.random.default_rng()

    def forward(self, inputs: Tensor) -> Tensor:
        noise = torch.as_tensor(self.generator.normal(size=inputs.shape), dtype=inputs.dtype)
        return super().forward(inputs + 0.01 * noise)


model = Noisy()
Trainer(model, nn.CrossEntropyLoss(), adam(model), callbacks=(), seed=0).train(points(), 2, points(64, 1))
