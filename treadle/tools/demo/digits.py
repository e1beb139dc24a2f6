"""A small convolutional network on the 1,797 handwritten digits that come with scikit-learn."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torchmetrics
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import Subset, TensorDataset, random_split

from treadle.callbacks import DEFAULT_CALLBACKS, GradientNormMonitor, LearningRateMonitor, StepTimer, ThroughputMonitor
from treadle.schedules.placeholders import TrainerPlaceholderValues
from treadle.trainer import Trainer

MONITORS: tuple[Any, ...] = (LearningRateMonitor, GradientNormMonitor, ThroughputMonitor, StepTimer)
"""What the page of the run shows besides loss and accuracy."""

P: Any = TrainerPlaceholderValues
"""Stand for the length of the run; numbers, as far as a schedule is concerned."""

Part = Subset[tuple[torch.Tensor, ...]]


def digits() -> tuple[Part, Part]:
    """Return four fifths of the digits to train on and one fifth to hold out."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16, torch.tensor(labels))
    train, held_out = random_split(data, [0.8, 0.2], generator=torch.Generator().manual_seed(0))
    return train, held_out


def network() -> nn.Module:
    """Return two convolutions and two linear layers."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Dropout(0.2), nn.Linear(32 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, 10)),
    )


def run(folder: Path, say: Callable[[str], object], epochs: int = 10) -> None:
    """Train, evaluate, and say how many held-out digits are read.

    Args:
        folder: The folder of the run.
        say: Where to say it.
        epochs: How long to train.
    """
    torch.manual_seed(0)
    train, held_out = digits()
    model = network()
    trainer = Trainer(
        model,
        loss_func=nn.CrossEntropyLoss(),
        optimizer=torch.optim.AdamW(model.parameters()),
        metrics={"accuracy": torchmetrics.Accuracy("multiclass", num_classes=10)},
        callbacks=(*DEFAULT_CALLBACKS, *MONITORS),
        execution="auto",
        seed=0,
        run_dir=folder,
    )
    result = trainer.train(
        train,
        num_epochs=epochs,
        eval_dataset=held_out,
        per_device_batch_size=32,
        log_every=10,
        create_scheduler_fn=partial(
            OneCycleLR, max_lr=0.005, epochs=P.NUM_EPOCHS, steps_per_epoch=P.NUM_UPDATE_STEPS_PER_EPOCH
        ),
        resume="auto",
    )
    accuracy = result.history["accuracy"][-1]
    say(f"\n{accuracy:.1%} of {len(held_out)} held-out digits are read.")
