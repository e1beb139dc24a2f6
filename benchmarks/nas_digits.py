"""Search quality on a space that is known in full: 625 networks for handwritten digits, all trained once.

    python -m benchmarks.nas_digits table --table digits.json       trains every network that is not in the file yet
    python -m benchmarks.nas_digits search --table digits.json      ranks what each one-shot trainer exports

The table is trained in the order of the space and written after each network, so it may be stopped and started again.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Subset, TensorDataset

from benchmarks.provenance import provenance
from benchmarks.results import write_section
from treadle import Trainer, nas

CHANNELS, CHOICES, BATCH_SIZE = 16, 4, 64
TRAINED, EPOCHS = 1400, 15
SECTION = "nas-digits"
PACKAGES = ("torch", "treadle", "scikit-learn")
NNI = {"DartsTrainer": "98.66", "GumbelDartsTrainer": "99.16", "ProxylessTrainer": "94.64"}
"""Test accuracy of what NNI 3.0 exported on its version of this space, one seed each."""


class DigitsSpace(nn.Module):
    """Four layers, each one of five operations; the picture is halved after the second."""

    def __init__(self, channels: int = CHANNELS) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels))
        self.layers = nn.ModuleList(nas.LayerChoice(operations(channels)) for _ in range(CHOICES))
        self.head = nn.Linear(channels, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return a score for each digit."""
        features = self.stem(images)
        for number, layer in enumerate(self.layers):
            features = layer(features)
            if number == 1:
                features = F.max_pool2d(features, 2)
        scores: Tensor = self.head(features.mean((2, 3)))
        return scores


def operations(channels: int) -> dict[str, nn.Module]:
    """Return what a layer is chosen from."""

    def convolution(kernel: int, groups: int = 1) -> nn.Module:
        layers: list[nn.Module] = [
            nn.Conv2d(channels, channels, kernel, padding=kernel // 2, groups=groups, bias=False)
        ]
        if groups > 1:
            layers.append(nn.Conv2d(channels, channels, 1, bias=False))
        return nn.Sequential(*layers, nn.BatchNorm2d(channels), nn.ReLU())

    return {
        "conv3": convolution(3),
        "conv5": convolution(5),
        "sep3": convolution(3, channels),
        "max_pool": nn.MaxPool2d(3, 1, 1),
        "none": nn.Identity(),
    }


def load_data() -> tuple[Subset[Any], Tensor, Tensor]:
    """Return the digits to train on, and the images and labels of the others."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target).long()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, test = order[:TRAINED], order[TRAINED:]
    return Subset(TensorDataset(images, labels), train.tolist()), images[test], labels[test]


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the share that was recognised."""
    return (outputs.argmax(1) == targets).float().mean()


def train_network(
    architecture: dict[str, Any], data: tuple[Subset[Any], Tensor, Tensor], epochs: int, seed: int
) -> float:
    """Train one network from scratch; return its test accuracy in percent."""
    torch.manual_seed(seed)
    network = nas.freeze(DigitsSpace(), architecture)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9, weight_decay=3e-4)
    trainer = Trainer(network, nn.CrossEntropyLoss(), optimizer, (), seed=seed, device="cpu")
    trainer.train(data[0], num_epochs=epochs, per_device_batch_size=BATCH_SIZE, log_every=1000)
    network.eval()
    with torch.no_grad():
        return 100 * float(accuracy(network(data[1]), data[2]))


# The table ----------------------------------------------------------------------------------------------------


def make_table(path: Path, epochs: int, limit: int | None, minutes: float) -> None:
    """Train the networks that the file does not have, as long as there is time."""
    table = read_table(path) if path.exists() else {"epochs": epochs, "networks": {}}
    if table["epochs"] != epochs:
        raise SystemExit(f"{path} holds networks of {table['epochs']} epochs, not of {epochs}; give another file")
    data, began = load_data(), time.monotonic()
    for number, architecture in enumerate(nas.enumerate(DigitsSpace())):
        key = nas.key_of(architecture)
        over = time.monotonic() - began > 60 * minutes
        if over or (limit is not None and number >= limit):
            break
        if key in table["networks"]:
            continue
        table["networks"][key] = train_network(architecture, data, epochs, seed=0)
        unfinished = path.with_suffix(".part")
        unfinished.write_text(json.dumps(table))
        unfinished.replace(path)
        if len(table["networks"]) % 25 == 0:
            print(f"{len(table['networks'])} networks, {time.monotonic() - began:.0f} s", flush=True)
    print(f"{path}: {len(table['networks'])} of {nas.size(DigitsSpace())} networks")


def read_table(path: Path) -> dict[str, Any]:
    """Return the table in a file."""
    table: dict[str, Any] = json.loads(path.read_text())
    return table


def rank_of(architecture: dict[str, Any], networks: dict[str, float]) -> tuple[int, float]:
    """Return how many networks are better, and the accuracy; networks that are as good share a rank."""
    own = networks[nas.key_of(architecture)]
    return 1 + sum(other > own for other in networks.values()), own


# The searches -------------------------------------------------------------------------------------------------


def ways(epochs: int) -> dict[str, Callable[..., Any]]:
    """Return the trainers, by name, each as a function of what they all take."""

    def gradient(kind: Any, **options: Any) -> Callable[..., Any]:
        return lambda space, data, **common: kind(
            space, F.cross_entropy, accuracy, None, epochs, data, arc_learning_rate=3e-3, **options, **common
        )

    def enas(space: nn.Module, data: Any, **common: Any) -> Any:
        own = {"ctrl_lr": 0.01, "ctrl_steps_aggregate": 5, "baseline_decay": 0.95, "controller_steps": 20}
        return nas.EnasTrainer(space, F.cross_entropy, accuracy, accuracy, None, epochs, data, **own, **common)

    def spos(space: nn.Module, data: Any, **common: Any) -> Any:
        own = {"population": 20, "generations": 4, "parents": 5, "recalibration_batches": 5}
        return nas.SposTrainer(space, F.cross_entropy, accuracy, None, 3 * epochs, data, **own, **common)

    return {
        "DartsTrainer": gradient(nas.DartsTrainer),
        "DartsTrainer, unrolled": gradient(nas.DartsTrainer, unrolled=True),
        "GumbelDartsTrainer": gradient(nas.GumbelDartsTrainer),
        "GumbelDartsTrainer, hard": gradient(nas.GumbelDartsTrainer, hard=True),
        "ProxylessTrainer": gradient(nas.ProxylessTrainer),
        "EnasTrainer": enas,
        "SposTrainer": spos,
    }


def search(name: str, seed: int, epochs: int) -> tuple[dict[str, Any], float]:
    """Search once; return the architecture, and the seconds it took."""
    torch.manual_seed(seed)
    space = DigitsSpace()
    trainer = ways(epochs)[name](space, load_data()[0], batch_size=BATCH_SIZE, seed=seed, callbacks=(), device="cpu")
    began = time.perf_counter()
    trainer.fit()
    return trainer.export(), time.perf_counter() - began


def run_searches(path: Path, names: Sequence[str], seeds: int, epochs: int, out: Path | None) -> list[dict[str, Any]]:
    """Search with every trainer and seed, and rank what was exported."""
    networks = read_table(path)["networks"]
    rows: list[dict[str, Any]] = json.loads(out.read_text()) if out is not None and out.exists() else []
    for name in names:
        for seed in range(seeds):
            if any((row["name"], row["seed"]) == (name, seed) for row in rows):
                continue
            architecture, seconds = search(name, seed, epochs)
            rank, own = rank_of(architecture, networks)
            rows.append({"name": name, "seed": seed, "rank": rank, "accuracy": own, "seconds": round(seconds, 1),
                         "architecture": architecture})  # fmt: skip
            print(f"{name}, seed {seed}: rank {rank} of {len(networks)}, {own:.2f}%, {seconds:.1f} s", flush=True)
            if out is not None:
                out.write_text(json.dumps(rows))
    return rows


def as_markdown(rows: Sequence[dict[str, Any]], table: dict[str, Any], epochs: int) -> str:
    """Return the section for the results."""
    values = sorted(table["networks"].values(), reverse=True)
    lines = [
        "## Search quality: 625 networks for digits",
        "",
        provenance("nas_digits", PACKAGES, epochs=f"{table['epochs']} per network of the table, {epochs} per search"),
        "",
        f"All {len(values)} networks were trained once: best {values[0]:.2f}%, median "
        f"mean {statistics.mean(values):.2f}%, worst {values[-1]:.2f}%. Rank: how many are better, plus one; networks "
        "that are as good share it. NNI: what version 3.0 exported on its version of this space, one seed.",
        "",
        "| trainer | ranks over the seeds | mean rank | accuracy | search, s | NNI |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for name in dict.fromkeys(row["name"] for row in rows):
        own = [row for row in rows if row["name"] == name]
        ranks = [row["rank"] for row in own]
        lines.append(
            f"| {name} | {', '.join(map(str, ranks))} | {statistics.mean(ranks):.0f} | "
            f"{statistics.mean(row['accuracy'] for row in own):.2f} | "
            f"{statistics.mean(row['seconds'] for row in own):.1f} | {NNI.get(name, '')} |"
        )
    share = statistics.mean(1 + sum(other > value for other in values) for value in values)
    lines.append(f"| a random network | | {share:.0f} | {statistics.mean(values):.2f} | 0 | 91.7 |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the table, or search and rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("table", "search"))
    parser.add_argument("--table", type=Path, default=Path("nas_digits.json"))
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--limit", type=int, help="train only the first so many networks")
    parser.add_argument("--minutes", type=float, default=1e9, help="when to stop making the table")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=list(ways(1)), help="which trainers")
    parser.add_argument("--out", type=Path, help="where every search is kept as it ends; those in it are not repeated")
    parser.add_argument("--write", action="store_true", help="write the section of RESULTS.md")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if options.what == "table":
        make_table(options.table, options.epochs, options.limit, options.minutes)
        return
    rows = run_searches(options.table, options.only, options.seeds, options.epochs, options.out)
    section = as_markdown(rows, read_table(options.table), options.epochs)
    print(section)
    if options.write:
        write_section(SECTION, section)


if __name__ == "__main__":
    main()
