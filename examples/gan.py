"""Trains a generator and a discriminator in turns on points around a circle: two optimizers, two phases.

Every batch is used twice: by the discriminator and then, because of `reuse=True`, by the generator.
"""

import argparse
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus
from torch.utils.data import TensorDataset

from treadle import Phase, Trainer, alternate


class Game(nn.Module):
    """A generator that turns noise into points, and a discriminator that tells points apart."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
        self.discriminator = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))

    def forward(self, noise: Tensor) -> Tensor:
        """Return a point for each row of noise."""
        points: Tensor = self.generator(noise)
        return points


class GanTrainer(Trainer):
    """One update of the discriminator, then one of the generator, on the same batch."""

    def discriminator_loss(self, batch: list[Tensor]) -> dict[str, Any]:
        """Return how badly the discriminator tells real points from made ones."""
        real, judge = batch[0], self.model.discriminator
        made = self.model(torch.randn(len(real), 4, device=real.device)).detach()
        loss = softplus(-judge(real)).mean() + softplus(judge(made)).mean()
        return {"loss": loss, "model_outputs": made, "batch_size": len(real)}

    def generator_loss(self, batch: list[Tensor]) -> dict[str, Any]:
        """Return how badly the generator fools the discriminator."""
        made = self.model(torch.randn(len(batch[0]), 4, device=batch[0].device))
        loss = softplus(-self.model.discriminator(made)).mean()
        return {"loss": loss, "model_outputs": made, "batch_size": len(made)}

    def phases(self, epoch: int) -> Iterator[Phase]:
        """Say whose turn it is: discriminator, generator, discriminator, and so on."""
        left, right = self._phase_of("discriminator"), self._phase_of("generator", reuse=True)
        return alternate(left, right)

    def _phase_of(self, name: str, *, reuse: bool = False) -> Phase:
        loss, parameters = getattr(self, f"{name}_loss"), list(getattr(self.model, name).parameters())
        stream, optimizer = self.streams["train"], self.optimizers()[name]
        return Phase(name, stream, loss, optimizer, parameters=parameters, steps=1, reuse=reuse)


def main() -> None:
    """Train on a circle and say how far from its centre the made points lie."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=100)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    angles = 2 * math.pi * torch.rand(2048)
    circle = TensorDataset(torch.stack([angles.cos(), angles.sin()], dim=1))
    game = Game()
    parts = {"generator": game.generator, "discriminator": game.discriminator}
    optimizers = {name: torch.optim.Adam(part.parameters(), lr=2e-3, betas=(0.5, 0.9)) for name, part in parts.items()}
    trainer = GanTrainer(game, None, optimizers, callbacks=(), seed=0)
    result = trainer.train(circle, num_epochs=arguments.epochs, per_device_batch_size=128)
    radii = trainer.predict(torch.randn(1000, 4), per_device_batch_size=1000).norm(dim=1)
    print(f"{result.steps} steps; made points lie {radii.mean():.2f} +- {radii.std():.2f} from the centre (real: 1)")


if __name__ == "__main__":
    main()
