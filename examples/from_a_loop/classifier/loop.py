"""Trains an image classifier with a hand-written loop."""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader

from .model import Net, load_data


def train(args, model, device, train_loader, optimizer, loss_func, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(train_loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        loss = loss_func(model(data), target)
        loss.backward()
        optimizer.step()
        if batch_idx % args.log_interval == 0:
            done = batch_idx * len(data)
            print(f"train epoch {epoch} [{done}/{len(train_loader.dataset)}] loss {loss.item():.4f}")


def test(model, device, test_loader, loss_func):
    model.eval()
    test_loss, correct = 0.0, 0
    with torch.no_grad():
        for data, target in test_loader:
            data, target = data.to(device), target.to(device)
            output = model(data)
            test_loss += loss_func(output, target).item() * len(data)
            correct += (output.argmax(dim=1) == target).sum().item()
    count = len(test_loader.dataset)
    print(f"test: loss {test_loss / count:.4f}, accuracy {correct}/{count} ({correct / count:.1%})")
    return correct / count


def main(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--gamma", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log-interval", type=int, default=10)
    parser.add_argument("--out", default="runs/classifier")
    args = parser.parse_args(argv)

    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_set, test_set = load_data()
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True)
    test_loader = DataLoader(test_set, batch_size=256, generator=torch.Generator())

    model = Net().to(device)
    loss_func = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)
    Path(args.out).mkdir(parents=True, exist_ok=True)
    best = 0.0
    for epoch in range(1, args.epochs + 1):
        train(args, model, device, train_loader, optimizer, loss_func, epoch)
        accuracy = test(model, device, test_loader, loss_func)
        scheduler.step()
        if accuracy > best:
            best = accuracy
            torch.save(model.state_dict(), f"{args.out}/best.pt")


if __name__ == "__main__":
    main()
