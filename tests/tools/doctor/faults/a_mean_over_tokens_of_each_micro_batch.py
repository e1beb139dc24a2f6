"""Losses are means over the tokens of a micro-batch, of which some have many more than others."""

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import TensorDataset

from tests.tools.doctor.parts import Network, adam, points
from treadle import Trainer

FAULT = "accumulation"

inputs, labels = points().tensors
tokens = labels[:, None].repeat(1, 8)
lengths = torch.arange(len(labels)) % 8 + 1
tokens[torch.arange(8)[None, :] >= lengths[:, None]] = -100


class Tokens(Network):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs)[:, :, None].expand(-1, -1, 8)


def mean_over_tokens(outputs: Tensor, targets: Tensor) -> Tensor:
    each = functional.cross_entropy(outputs, targets, reduction="none")
    return each.sum() / (targets != -100).sum()


torch.manual_seed(0)
model = Tokens()
Trainer(model, mean_over_tokens, adam(model), callbacks=(), seed=0).train(
    TensorDataset(inputs, tokens), 2, per_device_batch_size=4, gradient_accumulation_steps=4
)
