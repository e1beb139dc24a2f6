"""A search over trials: the width, the activation and the learning rate of a network that tells spirals apart."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from treadle import nas
from treadle.search.trial.lines import TrialLines, parameters_in
from treadle.trainer import Trainer

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "none": nn.Identity}


def spirals(count: int, seed: int) -> TensorDataset:
    """Return points on two spirals that wind around each other, and which of the two each lies on."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (count,), generator=generator)
    turns = torch.rand(count, generator=generator).sqrt() * 2 * torch.pi
    angles = turns + labels * torch.pi
    points = torch.stack([angles.cos(), angles.sin()], dim=1) * (turns / torch.pi).unsqueeze(1)
    return TensorDataset(points + 0.12 * torch.randn(count, 2, generator=generator), labels)


def network(width: int, activation: str) -> nn.Module:
    """Return two hidden layers of a width, with an activation behind each."""
    layer = ACTIVATIONS[activation]
    return nn.Sequential(nn.Linear(2, width), layer(), nn.Linear(width, width), layer(), nn.Linear(width, 2))


def trial(setting: Mapping[str, Any], epochs: int) -> float:
    """Train what a setting describes, and return the share of other points that it puts on their spiral."""
    model = network(setting["width"], setting["activation"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=setting["rate"])
    trainer = Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=(), seed=0)
    trainer.train(spirals(512, seed=0), num_epochs=epochs, per_device_batch_size=64)
    points, labels = spirals(512, seed=1).tensors
    scores: Tensor = trainer.predict(points, per_device_batch_size=512)
    return float((scores.cpu().argmax(dim=1) == labels).float().mean())


def run(folder: Path, say: Callable[[str], object], trials: int = 20, epochs: int = 30) -> None:
    """Search, and show what was found.

    Args:
        folder: The folder of the search.
        say: Where to say it.
        trials: How many settings to try.
        epochs: How long to train each.
    """
    space = {
        "width": nas.one_of(4, 8, 16, 32),
        "activation": nas.one_of(*ACTIVATIONS),
        "rate": nas.log_uniform(1e-3, 1e-1),
    }
    say(f"{trials} trials of two spirals; the share of points on the right one:")

    def tried(setting: Mapping[str, Any]) -> float:
        return trial(setting, epochs)

    lines = TrialLines(say)
    search = lines.search = nas.Search(
        space, tried, strategy="tpe", trials=trials, seed=0, run_dir=folder, on_trial=lines
    )
    results = search.run()
    best = results["best"]
    found = parameters_in(best["parameters"])
    say(f"\nThe best of {len(results['trials'])}: {best['values']['default']:.1%} with {found}.")
