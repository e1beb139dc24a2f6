"""Trains a variational autoencoder with a hand-written loop."""

import argparse
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from .model import VAE, load_data, negative_elbo


def train(args, model, device, train_loader, optimizer, epoch):
    model.train()
    train_loss = 0.0
    for batch_idx, (images, _) in enumerate(train_loader):
        images = images.to(device)
        optimizer.zero_grad()
        loss = negative_elbo(model(images), images)
        loss.backward()
        train_loss += loss.item()
        optimizer.step()
        if batch_idx % args.log_interval == 0:
            print(f"train epoch {epoch}, batch {batch_idx}: loss {loss.item() / len(images):.4f}")
    print(f"epoch {epoch}: average loss {train_loss / len(train_loader.dataset):.4f}")


def test(model, device, test_loader):
    model.eval()
    test_loss = 0.0
    with torch.no_grad():
        for images, _ in test_loader:
            images = images.to(device)
            test_loss += negative_elbo(model(images), images).item()
    print(f"test loss {test_loss / len(test_loader.dataset):.4f}")


def main(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log-interval", type=int, default=10)
    parser.add_argument("--out", default="runs/vae")
    args = parser.parse_args(argv)

    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_set, test_set = load_data()
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True)
    test_loader = DataLoader(test_set, batch_size=args.batch_size, generator=torch.Generator())

    model = VAE().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    Path(args.out).mkdir(parents=True, exist_ok=True)
    for epoch in range(1, args.epochs + 1):
        train(args, model, device, train_loader, optimizer, epoch)
        test(model, device, test_loader)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
        torch.save(state, f"{args.out}/last.pt")


if __name__ == "__main__":
    main()
