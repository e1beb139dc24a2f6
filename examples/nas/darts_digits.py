"""Searches a small network for handwritten digits with DARTS, then trains what it found.

With `--run-dir` the search can be stopped at any moment: started again with the same command, it resumes where it was,
and finds the same. `--penalty` makes large networks pay for their operations.
"""

import argparse
import json

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Subset, TensorDataset

from treadle import Trainer, nas


def convolution(kernel: int) -> nn.Module:
    """Return a convolution that keeps the size of the picture."""
    return nn.Sequential(nn.Conv2d(16, 16, kernel, padding=kernel // 2), nn.BatchNorm2d(16), nn.ReLU())


class Digits(nn.Module):
    """Two layers and a shortcut, all of them to be decided."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 3, padding=1)
        self.first = nas.LayerChoice({"conv3": convolution(3), "conv5": convolution(5), "pool": nn.MaxPool2d(3, 1, 1)})
        self.second = nas.LayerChoice({"conv3": convolution(3), "conv5": convolution(5), "none": nn.Identity()})
        self.skip = nas.InputChoice(n_candidates=2, n_chosen=1)
        self.head = nn.Linear(16 * 4, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return a score for each digit."""
        first = self.first(self.stem(images))
        features = self.skip(self.second(first), first)
        scores: Tensor = self.head(F.adaptive_avg_pool2d(features, 2).flatten(1))
        return scores


def accuracy(outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Return the share of digits that were recognised; it stays on the device."""
    return {"accuracy": (outputs.argmax(1) == targets).float().mean()}


def main() -> None:
    """Search, freeze, train, and say how good it is on digits that nobody has seen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--unrolled", action="store_true", help="second order")
    parser.add_argument("--penalty", type=float, default=0.0, help="what operations cost")
    parser.add_argument("--run-dir", help="where to keep the search")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    digits = load_digits()
    images, labels = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16, torch.tensor(digits.target)
    data = TensorDataset(images, labels.long())
    train, test = Subset(data, range(1400)), Subset(data, range(1400, len(data)))
    space = Digits()
    penalties = [nas.Penalty(nas.flops_of(space, images[:1]), arguments.penalty)] if arguments.penalty else []
    sgd = torch.optim.SGD(space.parameters(), lr=0.05, momentum=0.9, weight_decay=3e-4)
    search = nas.DartsTrainer(
        space, F.cross_entropy, accuracy, sgd, arguments.epochs, train, unrolled=arguments.unrolled, seed=0,
        penalties=penalties, arc_learning_rate=0.02, run_dir=arguments.run_dir, callbacks=()
    )  # fmt: skip
    search.fit(resume="auto" if arguments.run_dir else None)
    print(f"found {json.dumps(search.export())} among {nas.size(space)} networks")
    network = nas.freeze(Digits(), search.export())
    trainer = Trainer(network, nn.CrossEntropyLoss(), torch.optim.AdamW(network.parameters(), lr=3e-3), (), seed=0)
    trainer.train(train, num_epochs=arguments.epochs, per_device_batch_size=64)
    right = trainer.predict(test, per_device_batch_size=256).argmax(1) == labels[1400:]
    print(
        f"{sum(one.numel() for one in network.parameters())} weights, test accuracy {100 * right.float().mean():.1f}%"
    )


if __name__ == "__main__":
    main()
