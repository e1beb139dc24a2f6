"""A program without a fault: regression with a warm-up."""

from functools import partial

import torch
from torch import nn
from torch.optim.lr_scheduler import LinearLR
from torch.utils.data import TensorDataset

from tests.tools.doctor.parts import adam, points
from treadle import Trainer

torch.manual_seed(0)
inputs, labels = points().tensors
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
Trainer(model, nn.MSELoss(), adam(model), callbacks=(), seed=0).train(
    TensorDataset(inputs, labels[:, None].float()), 2, create_scheduler_fn=partial(LinearLR, total_iters=20)
)
