"""Trains the same GPT with Treadle."""

import argparse
import math
from functools import partial

import torch
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

from treadle import Trainer
from treadle.checkpoint import Policy

from .model import GPT, get_batch, load_text, validation_batches


class RandomWindows:
    """Batches of random windows without end. With its `state_dict`, a resumed run draws the windows that are next."""

    def __init__(self, batch_size, context, seed):
        self.data, self.batch_size, self.context = load_text("train"), batch_size, context
        self.generator = torch.Generator().manual_seed(seed)

    def __iter__(self):
        while True:
            yield get_batch(self.data, self.batch_size, self.context, self.generator)

    def state_dict(self):
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state):
        self.generator.set_state(state["generator"])


class GPTTrainer(Trainer):
    """The model computes its loss itself, as a mean over all characters of the batch."""

    def calculate_train_batch_loss(self, batch):
        logits, loss = self.model(*batch)
        return {"loss": loss, "model_outputs": logits, "batch_size": len(batch[0])}

    calculate_eval_batch_loss = calculate_train_batch_loss


def lr_factor(step, warmup_iters, max_iters, min_factor=0.1):
    if step < warmup_iters:
        return (step + 1) / (warmup_iters + 1)
    progress = (step - warmup_iters) / (max_iters - warmup_iters)
    return min_factor + 0.5 * (1 - min_factor) * (1 + math.cos(math.pi * progress))


def main(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-iters", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--accumulation", type=int, default=4)
    parser.add_argument("--context", type=int, default=32)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--warmup-iters", type=int, default=10)
    parser.add_argument("--grad-clip", type=float, default=1.0)
    parser.add_argument("--eval-interval", type=int, default=20)
    parser.add_argument("--log-interval", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1337)
    parser.add_argument("--out", default="runs/gpt")
    args = parser.parse_args(argv)

    torch.manual_seed(args.seed)
    model = GPT(args.context)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)
    trainer = GPTTrainer(model, None, optimizer, run_dir=args.out, checkpoints=Policy(best="eval_loss_epoch"))
    factor = partial(lr_factor, warmup_iters=args.warmup_iters, max_iters=args.max_iters)
    trainer.train(
        RandomWindows(args.batch_size, args.context, args.seed),
        max_steps=args.max_iters,
        eval_dataset=DataLoader(validation_batches(args.batch_size, args.context), batch_size=None),
        gradient_accumulation_steps=args.accumulation,
        clip_norm=args.grad_clip,
        create_scheduler_fn=partial(LambdaLR, lr_lambda=factor),
        eval_every=args.eval_interval,
        log_every=args.log_interval,
        save_every=args.eval_interval,
        resume="auto",
    )


if __name__ == "__main__":
    main()
