"""Trains a GPT with a hand-written loop: gradient accumulation, warm-up and cosine schedule, clipping, checkpoints."""

import argparse
import math
import os
import time

import torch

from .model import GPT, get_batch, load_text, validation_batches


def lr_factor(step, warmup_iters, max_iters, min_factor=0.1):
    if step < warmup_iters:
        return (step + 1) / (warmup_iters + 1)
    progress = (step - warmup_iters) / (max_iters - warmup_iters)
    return min_factor + 0.5 * (1 - min_factor) * (1 + math.cos(math.pi * progress))


@torch.no_grad()
def estimate_loss(model, batches, device):
    model.eval()
    losses = [model(x.to(device), y.to(device))[1].item() for x, y in batches]
    model.train()
    return sum(losses) / len(losses)


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
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args(argv)

    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    os.makedirs(args.out, exist_ok=True)
    model = GPT(args.context).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)
    iter_num, best_val_loss = 0, math.inf
    if args.resume:
        checkpoint = torch.load(f"{args.out}/ckpt.pt", map_location=device)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        iter_num, best_val_loss = checkpoint["iter_num"], checkpoint["best_val_loss"]

    train_data, generator = load_text("train"), torch.Generator().manual_seed(args.seed)
    val_batches = validation_batches(args.batch_size, args.context)
    started = time.time()
    model.train()
    while iter_num < args.max_iters:
        lr = args.lr * lr_factor(iter_num, args.warmup_iters, args.max_iters)
        for group in optimizer.param_groups:
            group["lr"] = lr
        for _ in range(args.accumulation):
            x, y = get_batch(train_data, args.batch_size, args.context, generator)
            _, loss = model(x.to(device), y.to(device))
            loss = loss / args.accumulation
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.grad_clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        iter_num += 1
        if iter_num % args.log_interval == 0:
            took, started = time.time() - started, time.time()
            loss_value = loss.item() * args.accumulation
            print(f"iter {iter_num}: loss {loss_value:.4f}, {took / args.log_interval * 1000:.2f} ms an iteration")
        if iter_num % args.eval_interval == 0:
            val_loss = estimate_loss(model, val_batches, device)
            print(f"iter {iter_num}: validation loss {val_loss:.4f}")
            if val_loss < best_val_loss:
                best_val_loss = val_loss
                checkpoint = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "iter_num": iter_num,
                    "best_val_loss": best_val_loss,
                }
                torch.save(checkpoint, f"{args.out}/ckpt.pt")


if __name__ == "__main__":
    main()
