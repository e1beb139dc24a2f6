"""A program without a fault: 50 classes in few samples, a rate that begins at next to nothing, and weight decay."""

from functools import partial

import torch
from torch import nn
from torch.optim.lr_scheduler import LinearLR
from torch.utils.data import TensorDataset

from treadle import Trainer

torch.manual_seed(0)
centres = torch.randn(50, 12)
labels = torch.randint(50, (600,))
inputs = centres[labels] + 0.3 * torch.randn(600, 12)
model = nn.Sequential(nn.Linear(12, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 50))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9, weight_decay=1e-4)
Trainer(model, nn.CrossEntropyLoss(label_smoothing=0.1), optimizer, callbacks=(), seed=0).train(
    TensorDataset(inputs[:500], labels[:500]),
    4,
    TensorDataset(inputs[500:], labels[500:]),
    create_scheduler_fn=partial(LinearLR, start_factor=1e-6, total_iters=60),
)
