"""A one-shot trainer of one's own: choices are replaced by modules that learn which candidate is best.

`replace_layer_choice` puts a module in the place of every choice, nested ones too. The loop is plain PyTorch. What
comes with Treadle's own trainers (resume, precision, several processes, recorded steps) it has to do without.
"""

import argparse
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from treadle import nas


class Weighted(nn.Module):
    """Sums all candidates of a choice; how much each counts is learnt."""

    def __init__(self, choice: nas.LayerChoice) -> None:
        super().__init__()
        self.names = choice.candidates
        self.candidates = nn.ModuleList(choice)
        self.alpha = nn.Parameter(torch.zeros(len(self.candidates)))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the weighted sum."""
        weights = self.alpha.softmax(0)
        total: Any = sum(weight * candidate(inputs) for weight, candidate in zip(weights, self.candidates, strict=True))
        return total


class MyTrainer(nas.BaseOneShotTrainer):
    """Trains weights and choices in turns, each on its own half of the data."""

    def __init__(self, model: nn.Module, data: TensorDataset, epochs: int) -> None:
        self.model, self.epochs = model, epochs
        weights = list(model.parameters())
        self.choices = nas.replace_layer_choice(model, Weighted)
        alphas = [module.alpha for _, module in self.choices]
        self.optimizers = torch.optim.Adam(alphas, lr=0.05), torch.optim.Adam(weights, lr=0.01)
        halves = torch.utils.data.random_split(data, [0.5, 0.5])
        self.loaders = [DataLoader(half, batch_size=32, shuffle=True) for half in halves]

    def fit(self) -> None:
        """Take a step of the choices, then one of the weights, until the data was seen often enough."""
        for _ in range(self.epochs):
            for batches in zip(*self.loaders, strict=True):
                for optimizer, (inputs, targets) in zip(self.optimizers, batches, strict=True):
                    self.model.zero_grad()
                    F.cross_entropy(self.model(inputs), targets).backward()
                    optimizer.step()

    def export(self) -> dict[str, Any]:
        """Return the heaviest candidate of each choice."""
        return {label: module.names[int(module.alpha.argmax())] for label, module in self.choices}


def make_space() -> nn.Module:
    """Return a network for points in a plane, with two things to decide."""
    inner = nas.LayerChoice({"relu": nn.ReLU(), "none": nn.Identity()}, label="activation")
    outer = nas.LayerChoice({"deep": nn.Sequential(nn.Linear(2, 16), inner), "flat": nn.Linear(2, 16)}, label="layer")
    return nn.Sequential(outer, nn.Linear(16, 2))


def main() -> None:
    """Tell points in a ring from those inside, which takes a layer that is not linear."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=15)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    points = torch.randn(512, 2)
    trainer = MyTrainer(make_space(), TensorDataset(points, (points.norm(dim=1) > 1.2).long()), arguments.epochs)
    trainer.fit()
    print(f"found {trainer.export()}")
    print(nas.freeze(make_space(), trainer.export()))


if __name__ == "__main__":
    main()
