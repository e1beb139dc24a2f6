"""A program without a fault that uses much: schedule, accumulation, clipping, metrics, monitors."""

from functools import partial

import torch
import torchmetrics
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR

from tests.tools.doctor.parts import Network, adam, points
from treadle import Trainer
from treadle import TrainerPlaceholderValues as P
from treadle.callbacks import GradientNormMonitor, LearningRateMonitor, ThroughputMonitor

torch.manual_seed(0)
model = Network()
monitors = (LearningRateMonitor(), GradientNormMonitor(), ThroughputMonitor())
metrics = {"accuracy": torchmetrics.Accuracy("multiclass", num_classes=2)}
trainer = Trainer(model, nn.CrossEntropyLoss(), adam(model), metrics=metrics, callbacks=monitors, seed=0)
trainer.train(
    points(),
    2,
    points(60, 1),
    gradient_accumulation_steps=2,
    clip_norm=1.0,
    create_scheduler_fn=partial(OneCycleLR, max_lr=0.01, total_steps=P.NUM_UPDATE_STEPS_PER_EPOCH * 2),
)
