"""Fine-tunes a small network in two stages: first its head alone, then all of it with a lower rate below.

The backbone learns one task, the quadrant of a point; the new task is whether the point lies within a circle.
"""

import argparse

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from treadle import ModelFreezer, Trainer, parameter_groups


class Network(nn.Module):
    """A backbone and a head; a `ModelFreezer` sees them as two groups."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
        self.head = nn.Linear(32, classes)

    def forward(self, points: Tensor) -> Tensor:
        """Return a score for each class."""
        scores: Tensor = self.head(self.backbone(points))
        return scores


def train(network: Network, data: TensorDataset, optimizer: torch.optim.Optimizer, epochs: int) -> float:
    """Train and return the loss of the last epoch."""
    trainer = Trainer(network, nn.CrossEntropyLoss(), optimizer, callbacks=(), seed=0)
    result = trainer.train(data, num_epochs=epochs, per_device_batch_size=32)
    return float(result.history["train_loss_epoch"][-1])


def main() -> None:
    """Pre-train, train the head, train everything, and say what moved."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    epochs = parser.parse_args().epochs
    torch.manual_seed(0)
    points = torch.randn(512, 2)
    quadrant = (points[:, 0] > 0).long() * 2 + (points[:, 1] > 0).long()
    within = TensorDataset(points, (points.norm(dim=1) < 1).long())

    network = Network(classes=4)
    loss = train(network, TensorDataset(points, quadrant), torch.optim.AdamW(network.parameters(), lr=1e-2), epochs)
    print(f"pre-trained: loss {loss:.3f}")

    network.head = nn.Linear(32, 2)
    freezer = ModelFreezer(network)
    freezer.freeze()  # all groups but the last, which is the head
    before = network.backbone[0].weight.clone()
    loss = train(network, within, torch.optim.AdamW(freezer.get_trainable_parameters(), lr=1e-2), epochs)
    unchanged = torch.equal(before, network.backbone[0].weight)
    print(f"head alone: loss {loss:.3f}, backbone unchanged: {unchanged}")

    freezer.unfreeze()
    rules = {"backbone.*": {"lr": 1e-3}, "*.bias": {"weight_decay": 0.0}}
    groups = parameter_groups(network, rules, lr=1e-2, weight_decay=0.01)
    for group in groups:
        print(f"  {group['name']}: lr {group['lr']}, weight decay {group['weight_decay']}, {group['param_names']}")
    loss = train(network, within, torch.optim.AdamW(groups), epochs)
    moved = not torch.equal(before, network.backbone[0].weight)
    print(f"everything: loss {loss:.3f}, backbone moved: {moved}")


if __name__ == "__main__":
    main()
