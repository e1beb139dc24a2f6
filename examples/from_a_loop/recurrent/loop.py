"""Trains a recurrent language model with a hand-written loop: the hidden state is carried from window to window."""

import argparse
import math
from pathlib import Path

import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from .model import RNNModel, Windows, batchify, load_text


def repackage_hidden(hidden):
    """Return the hidden state without its history, so that the gradient stops there."""
    return tuple(part.detach() for part in hidden)


def evaluate(model, data, batch_size, loss_func):
    model.eval()
    total_loss, count = 0.0, 0
    hidden = model.init_hidden(batch_size)
    with torch.no_grad():
        for tokens, targets in data:
            output, hidden = model(tokens, hidden)
            total_loss += loss_func(output, targets).item() * len(targets)
            count += len(targets)
    return total_loss / count


def train(args, model, data, optimizer, loss_func, epoch):
    model.train()
    total_loss = 0.0
    hidden = model.init_hidden(args.batch_size)
    for batch, (tokens, targets) in enumerate(data, start=1):
        optimizer.zero_grad()
        hidden = repackage_hidden(hidden)
        output, hidden = model(tokens, hidden)
        loss = loss_func(output, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        total_loss += loss.item()
        if batch % args.log_interval == 0:
            mean = total_loss / args.log_interval
            print(f"epoch {epoch}, {batch}/{len(data)}: loss {mean:.3f}, perplexity {math.exp(mean):.2f}")
            total_loss = 0.0


def main(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--bptt", type=int, default=32)
    parser.add_argument("--lr", type=float, default=2.0)
    parser.add_argument("--clip", type=float, default=0.25)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log-interval", type=int, default=10)
    parser.add_argument("--out", default="runs/recurrent")
    args = parser.parse_args(argv)

    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_data = Windows(batchify(load_text(600, seed=0), args.batch_size).to(device), args.bptt)
    val_data = Windows(batchify(load_text(100, seed=1), args.batch_size).to(device), args.bptt)

    model = RNNModel().to(device)
    loss_func = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    scheduler = ReduceLROnPlateau(optimizer, factor=0.25, patience=0)
    Path(args.out).mkdir(parents=True, exist_ok=True)
    best = math.inf
    for epoch in range(1, args.epochs + 1):
        train(args, model, train_data, optimizer, loss_func, epoch)
        val_loss = evaluate(model, val_data, args.batch_size, loss_func)
        print(f"end of epoch {epoch}: validation loss {val_loss:.3f}, perplexity {math.exp(val_loss):.2f}")
        scheduler.step(val_loss)
        if val_loss < best:
            best = val_loss
            torch.save(model.state_dict(), f"{args.out}/best.pt")


if __name__ == "__main__":
    main()
