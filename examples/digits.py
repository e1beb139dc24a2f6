"""Trains a small convolutional network on handwritten digits; `treadle demo digits` is much the same.

The 1,797 digits of 8 x 8 pixels ship inside scikit-learn. Kill it and start it again: it resumes where it was.
"""

import argparse
from functools import partial

import torch
import torchmetrics
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR

from treadle import DEFAULT_CALLBACKS, Trainer
from treadle import TrainerPlaceholderValues as P
from treadle.tools.demo.digits import digits


def network() -> nn.Module:
    """Return two convolutions and two linear layers."""
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Dropout(0.2), nn.Linear(64 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, 10)),
    )


def main() -> None:
    """Train, evaluate, and say where the run lies."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--run-dir", default="runs/digits")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    train, held_out = digits()
    model = network()
    trainer = Trainer(
        model,
        loss_func=nn.CrossEntropyLoss(),
        optimizer=torch.optim.AdamW(model.parameters()),
        metrics={"accuracy": torchmetrics.Accuracy("multiclass", num_classes=10)},
        callbacks=DEFAULT_CALLBACKS,
        seed=0,
        run_dir=arguments.run_dir,
    )
    trainer.train(
        train,
        num_epochs=arguments.epochs,
        eval_dataset=held_out,
        per_device_batch_size=32,
        create_scheduler_fn=partial(
            OneCycleLR, max_lr=0.005, epochs=P.NUM_EPOCHS, steps_per_epoch=P.NUM_UPDATE_STEPS_PER_EPOCH
        ),
        resume="auto",
    )
    results = trainer.evaluate(held_out, per_device_batch_size=128)
    print(f"held-out accuracy {results['accuracy']:.2%}; the run is in {arguments.run_dir}")


if __name__ == "__main__":
    main()
