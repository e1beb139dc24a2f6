"""Search quality on a space that is known in full: 625 networks for handwritten digits, all trained once.

    python -m benchmarks.nas.digits table                           trains every network that is not in the table yet
    python -m benchmarks.nas.digits search --found found.json       searches with each one-shot trainer and seed
    python -m benchmarks.nas.digits report --found found.json       ranks what was exported among all networks

The table, `benchmarks/nas/digits.json` unless `--table` says another file, is written after each network, the searches
after each one, so both may be stopped and started again. `table --part 0/3 --table a.json` trains every third network,
`search --only DartsTrainer` has one trainer, for several processes at once; `report` takes all files that they wrote.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
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

NOTHING = "none"
CHANNELS, CHOICES, BATCH_SIZE = 16, 4, 64
TRAINED, TABLE_EPOCHS, SEARCH_EPOCHS = 1400, 5, 15
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
        NOTHING: nn.Identity(),
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
    trainer.train(
        data[0],
        num_epochs=epochs,
        per_device_batch_size=BATCH_SIZE,
        create_scheduler_fn=partial(
            torch.optim.lr_scheduler.CosineAnnealingLR, T_max=epochs * -(-TRAINED // BATCH_SIZE)
        ),
        log_every=1000,
    )
    network.eval()
    with torch.no_grad():
        return 100 * float(accuracy(network(data[1]), data[2]))


# The table ----------------------------------------------------------------------------------------------------


def make_table(path: Path, epochs: int, limit: int | None, minutes: float, part: tuple[int, int] = (0, 1)) -> None:
    """Train the networks that the file does not have, as long as there is time; of every so many in a row but one."""
    table = read_table([path]) if path.exists() else {"epochs": epochs, "networks": {}}
    if table["epochs"] != epochs:
        raise SystemExit(f"{path} holds networks of {table['epochs']} epochs, not of {epochs}; give another file")
    data, began = load_data(), time.monotonic()
    for number, architecture in enumerate(nas.enumerate(DigitsSpace())):
        key = nas.key_of(architecture)
        over = time.monotonic() - began > 60 * minutes
        if over or (limit is not None and number >= limit):
            break
        if key in table["networks"] or number % part[1] != part[0] or not is_first(architecture):
            continue
        table["networks"][key] = train_network(architecture, data, epochs, seed=0)
        unfinished = path.with_suffix(".part")
        unfinished.write_text(json.dumps(table))
        unfinished.replace(path)
        if len(table["networks"]) % 25 == 0:
            print(f"{len(table['networks'])} networks, {time.monotonic() - began:.0f} s", flush=True)
    print(f"{path}: {len(table['networks'])} of {nas.size(DigitsSpace())} networks")


def is_first(architecture: dict[str, Any]) -> bool:
    """Whether a network is the first of those that are the same: where nothing is done comes last in each half."""
    operations = list(architecture.values())
    return all(operations[start] != NOTHING or operations[start + 1] == NOTHING for start in (0, 2))


def first_of(architecture: dict[str, Any]) -> dict[str, Any]:
    """Return the network that stands for all that are the same as this one.

    >>> list(first_of({"0": "none", "1": "conv3", "2": "conv5", "3": "none"}).values())
    ['conv3', 'none', 'conv5', 'none']
    """
    operations = list(architecture.values())
    halves = [sorted(operations[start : start + 2], key=lambda one: one == NOTHING) for start in (0, 2)]
    return dict(zip(architecture, halves[0] + halves[1], strict=True))


def read_table(paths: Sequence[Path]) -> dict[str, Any]:
    """Return the table in some files together."""
    tables: list[dict[str, Any]] = [json.loads(path.read_text()) for path in paths]
    epochs = {table["epochs"] for table in tables}
    if len(epochs) > 1:
        raise SystemExit(f"the tables hold networks of {sorted(epochs)} epochs, which cannot be compared")
    trained = {key: own for one in tables for key, own in one["networks"].items()}
    return {"epochs": epochs.pop(), "networks": trained}


def all_of(trained: dict[str, float]) -> dict[str, float]:
    """Return the accuracy of every network of the space."""
    every = list(nas.enumerate(DigitsSpace()))
    missing = sum(nas.key_of(first_of(one)) not in trained for one in every)
    if missing:
        raise SystemExit(f"{missing} of {len(every)} networks are not in the table yet; run `table` first")
    return {nas.key_of(one): trained[nas.key_of(first_of(one))] for one in every}


def part_of(text: str) -> tuple[int, int]:
    """Return the number of a part and how many there are, of text such as 0/3."""
    number, _, count = text.partition("/")
    return int(number), int(count)


def rank_of(architecture: dict[str, Any], networks: dict[str, float]) -> tuple[int, float]:
    """Return how many networks are better, and the accuracy; networks that are as good share a rank."""
    own = networks[nas.key_of(architecture)]
    return 1 + sum(other > own for other in networks.values()), own


# The searches -------------------------------------------------------------------------------------------------


def ways(epochs: int) -> dict[str, Callable[..., Any]]:
    """Return the trainers, by name, each as a function of what they all take.

    Those that train one random path at a time have three times the epochs: each weight is trained in a few of them.
    """

    def gradient(kind: Any, **options: Any) -> Callable[..., Any]:
        return lambda space, data, **common: kind(
            space, F.cross_entropy, accuracy, None, epochs, data, arc_learning_rate=3e-3, **options, **common
        )

    def enas(space: nn.Module, data: Any, **common: Any) -> Any:
        own = {"ctrl_lr": 0.01, "ctrl_steps_aggregate": 5, "baseline_decay": 0.95, "controller_steps": 20}
        # Before its weights are trained, a path does best that has none.
        own["warmup_epochs"] = epochs
        return nas.EnasTrainer(space, F.cross_entropy, accuracy, accuracy, None, 3 * epochs, data, **own, **common)

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
    """Search once; return the architecture, and the seconds of computing it took."""
    torch.manual_seed(seed)
    space = DigitsSpace()
    trainer = ways(epochs)[name](space, load_data()[0], batch_size=BATCH_SIZE, seed=seed, callbacks=(), device="cpu")
    # Others may be at work on the machine: on one thread, what was computed is what it takes alone.
    began = time.process_time()
    trainer.fit()
    return trainer.export(), time.process_time() - began


def run_searches(path: Path, names: Sequence[str], seeds: int, epochs: int) -> None:
    """Search with every trainer and seed that the file does not have."""
    rows = read_searches([path]) if path.exists() else []
    for name in names:
        for seed in range(seeds):
            if any((row["name"], row["seed"]) == (name, seed) for row in rows):
                continue
            architecture, seconds = search(name, seed, epochs)
            own = {"epochs": epochs, "seconds": round(seconds, 1), "architecture": architecture}
            rows.append({"name": name, "seed": seed, **own})
            path.write_text(json.dumps(rows))
            print(f"{name}, seed {seed}: {json.dumps(architecture)}, {seconds:.1f} s", flush=True)


def read_searches(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Return the searches in some files, by trainer and seed."""
    rows: list[dict[str, Any]] = [row for path in paths for row in json.loads(path.read_text())]
    order = list(ways(1))
    return sorted(rows, key=lambda row: (order.index(row["name"]), row["seed"]))


def as_markdown(rows: Sequence[dict[str, Any]], table: dict[str, Any]) -> str:
    """Return the section for the results."""
    networks = all_of(table["networks"])
    values = sorted(networks.values(), reverse=True)
    epochs = f"{table['epochs']} per network of the table, {rows[0]['epochs']} per search"
    lines = [
        "## Search quality: 625 networks for digits",
        "",
        provenance("nas_digits", PACKAGES, epochs=epochs),
        "",
        f"All {len(values)} networks; those that do the same operations in the same order were trained once for all "
        f"({len(table['networks'])} in all). Best {values[0]:.2f}%, median {statistics.median(values):.2f}%, "
        f"mean {statistics.mean(values):.2f}%, worst {values[-1]:.2f}%. Rank: how many are better, plus one; networks "
        "that are as good share it. NNI: what version 3.0 exported on its version of this space, one seed, trained for "
        "15 epochs. Seconds are of computing, on one thread.",
        "",
        "| trainer | ranks over the seeds | mean rank | accuracy | search, s | NNI |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for name in dict.fromkeys(row["name"] for row in rows):
        own = [row for row in rows if row["name"] == name]
        ranks, found = zip(*(rank_of(row["architecture"], networks) for row in own), strict=True)
        seconds = statistics.mean(row["seconds"] for row in own)
        lines.append(
            f"| {name} | {', '.join(map(str, ranks))} | {statistics.mean(ranks):.0f} | "
            f"{statistics.mean(found):.2f} | {seconds:.1f} | {NNI.get(name, '')} |"
        )
    share = statistics.mean(1 + sum(other > value for other in values) for value in values)
    lines.append(f"| a random network | | {share:.0f} | {statistics.mean(values):.2f} | 0 | 91.7 |")
    lines += ["", f"Accuracy less NNI's: {beside_nni(rows, networks)} points."]
    return "\n".join(lines)


def beside_nni(rows: Sequence[dict[str, Any]], networks: dict[str, float]) -> str:
    """Return by how much the mean accuracy of each trainer differs from NNI's."""
    found = []
    for name, other in NNI.items():
        own = [rank_of(row["architecture"], networks)[1] for row in rows if row["name"] == name]
        if own:
            found.append(f"{name} {statistics.mean(own) - float(other):+.2f}")
    return ", ".join(found)


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the table, search, or rank what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("table", "search", "report"))
    parser.add_argument("--table", type=Path, nargs="+", default=[Path(__file__).with_suffix(".json")])
    parser.add_argument("--found", type=Path, nargs="+", default=[Path("nas_digits_found.json")])
    parser.add_argument("--part", type=part_of, default=(0, 1), help="which networks to train, such as 0/3")
    parser.add_argument("--epochs", type=int, help="of each network of the table, or of each search")
    parser.add_argument("--limit", type=int, help="train only the first so many networks")
    parser.add_argument("--minutes", type=float, default=1e9, help="when to stop making the table")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=list(ways(1)), help="which trainers")
    parser.add_argument("--write", action="store_true", help="write the section of RESULTS.md")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if options.what == "table":
        epochs = options.epochs or TABLE_EPOCHS
        make_table(options.table[0], epochs, options.limit, options.minutes, options.part)
    elif options.what == "search":
        run_searches(options.found[0], options.only, options.seeds, options.epochs or SEARCH_EPOCHS)
    else:
        section = as_markdown(read_searches(options.found), read_table(options.table))
        print(section)
        if options.write:
            write_section(SECTION, section)


if __name__ == "__main__":
    main()
