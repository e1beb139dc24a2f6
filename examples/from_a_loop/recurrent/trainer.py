"""Trains the same recurrent language model with Treadle."""

import argparse
from functools import partial

import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from treadle import Trainer
from treadle.checkpoint import Policy

from .model import RNNModel, Windows, batchify, load_text


class Carried:
    """The hidden state between two windows. With these two methods it is saved and resumed with the run."""

    def __init__(self):
        self.hidden = None

    def state_dict(self):
        return {"hidden": self.hidden}

    def load_state_dict(self, state):
        self.hidden = state["hidden"]


class CarryingTrainer(Trainer):
    """Carries the hidden state from window to window; it begins with zeros in each epoch and each evaluation."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.train_state, self.eval_state = Carried(), Carried()
        self.track(train_state=self.train_state)

    def train_epoch_start(self):
        super().train_epoch_start()
        self.train_state.hidden = None

    def eval_epoch_start(self):
        super().eval_epoch_start()
        self.eval_state.hidden = None

    def calculate_train_batch_loss(self, batch):
        return self.carried_loss(batch, self.train_state)

    def calculate_eval_batch_loss(self, batch):
        return self.carried_loss(batch, self.eval_state)

    def carried_loss(self, batch, state):
        tokens, targets = batch
        hidden = self.model.init_hidden(tokens.shape[1]) if state.hidden is None else state.hidden
        output, hidden = self.model(tokens, hidden)
        state.hidden = tuple(part.detach() for part in hidden)  # the gradient stops here
        return {"loss": self.loss_func(output, targets), "model_outputs": output, "batch_size": len(targets)}


def main(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--bptt", type=int, default=32)
    parser.add_argument("--lr", type=float, default=2.0)
    parser.add_argument("--clip", type=float, default=0.25)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default="runs/recurrent")
    args = parser.parse_args(argv)

    torch.manual_seed(args.seed)
    train_data = Windows(batchify(load_text(600, seed=0), args.batch_size), args.bptt)
    val_data = Windows(batchify(load_text(100, seed=1), args.batch_size), args.bptt)
    model = RNNModel()
    trainer = CarryingTrainer(
        model,
        nn.CrossEntropyLoss(),
        torch.optim.SGD(model.parameters(), lr=args.lr),
        run_dir=args.out,
        checkpoints=Policy(best="eval_loss_epoch"),
    )
    trainer.train(
        train_data,
        num_epochs=args.epochs,
        eval_dataset=val_data,
        clip_norm=args.clip,
        create_scheduler_fn=partial(ReduceLROnPlateau, factor=0.25, patience=0),
        scheduler_metric="eval_loss_epoch",
        save_every="10 steps",
        resume="auto",
    )


if __name__ == "__main__":
    main()
