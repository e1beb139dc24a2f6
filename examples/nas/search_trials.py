"""Search the architecture and the learning rate of a small network together, every trial trained from scratch.

    python examples/nas/search_trials.py --trials 20 --run-dir runs/digits

Kill it whenever you like and start it again: no finished trial is run twice. The drawings of the search are in its
folder.
"""

import argparse
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from treadle import nas
from treadle.config import LazyCall


class DigitsSpace(nn.Module):
    """A layer to choose, a width to choose, and a head."""

    def __init__(self) -> None:
        super().__init__()
        width = nas.ValueChoice([8, 16, 32], label="width")
        self.first = nas.Built(nn.Linear, 64, width)
        self.activation = nas.LayerChoice(
            {"relu": nn.ReLU(), "tanh": nn.Tanh(), "none": nn.Identity()}, label="activation"
        )
        self.last = nas.Built(nn.Linear, width, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return a score for each digit."""
        scores: Tensor = self.last(self.activation(self.first(images)))
        return scores


@nas.register_trainer
class DigitsTrainer(nas.BaseTrainer):
    """Trains one network, and reports after each epoch."""

    def __init__(self, model: nn.Module, learning_rate: float = 0.01, epochs: int = 8) -> None:
        self.model, self.learning_rate, self.epochs = model, learning_rate, epochs
        digits = load_digits()
        self.images = torch.tensor(digits.data, dtype=torch.float32) / 16
        self.labels = torch.tensor(digits.target).long()

    def fit(self) -> None:
        """Train; a pruner may end it at any report."""
        optimizer = torch.optim.Adam(self.model.parameters(), lr=self.learning_rate)
        for _ in range(self.epochs):
            for rows in torch.randperm(1200).split(64):
                optimizer.zero_grad()
                F.cross_entropy(self.model(self.images[rows]), self.labels[rows]).backward()
                optimizer.step()
            nas.report_intermediate_result(self.accuracy())
        nas.report_final_result(self.accuracy())

    @torch.no_grad()
    def accuracy(self) -> float:
        """Return the share of the other digits that is recognised."""
        return float((self.model(self.images[1200:]).argmax(1) == self.labels[1200:]).float().mean())


def main() -> None:
    """Search, show the best trials, and keep the best network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--run-dir", type=Path, default=Path("runs/digits"))
    options = parser.parse_args()
    search = nas.Search(
        LazyCall(DigitsSpace)(),
        LazyCall(DigitsTrainer)(learning_rate=nas.log_uniform(1e-4, 1e-1), epochs=options.epochs),
        strategy="tpe",
        pruner="median",
        trials=options.trials,
        run_dir=options.run_dir,
        keep_weights=True,
    )
    results = search.run()
    complete = [trial for trial in results["trials"] if trial["values"] is not None]
    for trial in sorted(complete, key=lambda trial: -trial["values"]["default"])[:3]:
        print(f"trial {trial['number']}: {trial['values']['default']:.3f} with {trial['parameters']}")
    parameters = sum(weight.numel() for weight in search.best_network().parameters())
    print(f"{len(results['trials'])} trials; the best network has {parameters} parameters, and its weights are kept")


if __name__ == "__main__":
    main()
