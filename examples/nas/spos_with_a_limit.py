"""Finds the best network that is small enough: random paths, then a ranked search, and a limit on its parameters.

Widths, depth and kernels are decided; all networks share one set of weights, of which a smaller one uses a part.
"""

import argparse
import json

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from treadle import nas


def make_space() -> nn.Module:
    """Return a convolutional network with two widths, a kernel and a depth to be decided."""
    first, second = nas.ValueChoice([4, 8, 16], label="first"), nas.ValueChoice([8, 16, 32], label="second")
    kernel = nas.ValueChoice([3, 5], label="kernel")
    same = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
    return nn.Sequential(
        nas.Built(nn.Conv2d, 1, first, kernel, padding=kernel // 2),
        nas.Built(nn.BatchNorm2d, first),
        nn.ReLU(),
        nas.Built(nn.Conv2d, first, 16, 3, stride=2, padding=1),
        nas.Repeat(same, (0, 2), label="depth"),
        nas.Built(nn.Conv2d, 16, second, 3, stride=2, padding=1),
        nas.Built(nn.BatchNorm2d, second),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nas.Built(nn.Linear, second, 10),
    )


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the share of digits that were recognised."""
    return (outputs.argmax(1) == targets).float().mean()


def main() -> None:
    """Search, and show the best networks with what they cost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--limit", type=int, default=5000, help="how many parameters a network may have")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    data = TensorDataset(images, torch.tensor(digits.target).long())
    space = make_space()
    parameters = nas.parameters_of(space)
    trainer = nas.SposTrainer(
        space,
        F.cross_entropy,
        accuracy,
        torch.optim.Adam(space.parameters(), lr=3e-3),
        arguments.epochs,
        data,
        accept=lambda architecture: parameters.of(architecture) <= arguments.limit,
        population=10,
        generations=3,
        seed=0,
        callbacks=(),
    )
    trainer.fit()
    for found in trainer.export(top_k=3):
        cost = int(parameters.of(found.architecture))
        print(f"{100 * found.score:.1f}% with {cost} parameters: {json.dumps(found.architecture)}")


if __name__ == "__main__":
    main()
