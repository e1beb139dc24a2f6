"""Trains the same image classifier with Treadle."""

import argparse
from functools import partial

import torch
import torchmetrics
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader

from treadle import Trainer
from treadle.checkpoint import Policy

from .model import Net, load_data


def main(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--gamma", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default="runs/classifier")
    args = parser.parse_args(argv)

    torch.manual_seed(args.seed)
    train_set, test_set = load_data()
    model = Net()
    trainer = Trainer(
        model,
        nn.CrossEntropyLoss(),
        torch.optim.Adam(model.parameters(), lr=args.lr),
        metrics={"accuracy": torchmetrics.Accuracy("multiclass", num_classes=10)},
        run_dir=args.out,
        checkpoints=Policy(best="accuracy", greater_is_better=True),
    )
    trainer.train(
        DataLoader(train_set, batch_size=args.batch_size, shuffle=True),
        num_epochs=args.epochs,
        eval_dataset=DataLoader(test_set, batch_size=256),
        create_scheduler_fn=partial(StepLR, step_size=1, gamma=args.gamma),
        scheduler_interval="epoch",
        resume="auto",
    )


if __name__ == "__main__":
    main()
