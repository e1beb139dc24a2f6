"""Promotion beside median pruning: what each finds, and how many epochs it trains for that.

    python -m benchmarks.nas.promotion --write

Two tasks, ten seeds each. On NAS-Bench-201 a cell has two fidelities: its accuracy on the validation data of CIFAR-100
after 12 epochs, and on the test data after 200. The tables are looked for in the folder `nasbench201` of
`$TREADLE_DATA`. The real task trains small networks on scikit-learn's digits, by the checkpoints of each trial.

Trials are drawn at random; on the table also by strategies that learn, TPE beside median pruning as in Optuna, and the
surrogate, which learns from the short trainings, beside promotion. The bar: at one third of the epochs of median
pruning, what promotion finds is on average at least as good.
"""

import argparse
import csv
import gzip
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import nn

from benchmarks.nas.search import COLUMN, EDGES, OPERATIONS, operations_of
from benchmarks.provenance import provenance
from benchmarks.results import write_section
from treadle import Trainer, search
from treadle.data.location import data_folder

SECTION = "nas-promotion"
PACKAGES = ("treadle", "optuna", "torch")
SHORT, LONG = 12, 200
DIGITS_EPOCHS = 27
PART = 3
"""Promotion may train one of so many epochs of median pruning."""

Pair = tuple[float, float]


class Found(NamedTuple):
    """The best objective of a search, and how many epochs all of its trials were trained."""

    best: float
    epochs: int


class Task(NamedTuple):
    """What is searched: a name, which direction is better, and the ways to search, that of median pruning first."""

    name: str
    sign: int
    ways: dict[str, Callable[[int, Path], Found]]


# NAS-Bench-201 with two fidelities ----------------------------------------------------------------------------------


def read_fidelities(folder: Path) -> dict[tuple[str, ...], Pair]:
    """Return the accuracies of every cell: validation after 12 epochs, and test after 200."""

    def rows(name: str) -> list[dict[str, str]]:
        with gzip.open(folder / name, "rt", encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    short, long = rows("mini_nasbench201_12epochs.csv.gz"), rows("nats_bench.csv.gz")
    found = {}
    for one, other in zip(short, long, strict=True):
        assert one["cellstr"] == other["ArchitectureString"]
        found[operations_of(one["cellstr"])] = float(one["cifar100-val"]), float(other[COLUMN])
    return found


def table_task(table: dict[tuple[str, ...], Pair]) -> Task:
    """Return the search of a cell."""
    space = {edge: search.one_of(*OPERATIONS) for edge in EDGES}

    def found(seed: int, trials: int, **options: Any) -> Found:
        spent = [0]

        def judge(cell: dict[str, str]) -> float:
            short, long = table[tuple(cell[edge] for edge in EDGES)]
            trial = search.this_trial()
            if trial.budget is None:
                spent[0] += SHORT
                search.report_intermediate_result(short, step=SHORT)
            if trial.budget == SHORT:
                spent[0] += SHORT
                return short
            spent[0] += LONG - SHORT
            return long

        results = search.Search(space, judge, trials=trials, seed=seed, store="memory", **options).run()
        return Found(results["best"]["values"]["default"], spent[0])

    halving = search.Halving(budgets=[SHORT, LONG], reduction=64, cohort=128)
    return Task(
        "NAS-Bench-201, CIFAR-100, accuracy",
        1,
        {
            "median pruning": lambda seed, folder: found(seed, 100, pruner="median"),
            "promotion": lambda seed, folder: found(seed, 128, promotion=halving),
            "median pruning, TPE": lambda seed, folder: found(seed, 100, pruner="median", strategy="tpe"),
            "promotion, surrogate": lambda seed, folder: found(seed, 128, promotion=halving, strategy="surrogate"),
        },
    )


# A real small task --------------------------------------------------------------------------------------------------


def digits_task() -> Task:
    """Return the search of the settings of a small network."""
    data = load_digits()
    inputs, labels = torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)
    samples = list(zip(inputs, labels, strict=True))
    train, valid = samples[:1000], samples[1000:1400]
    space = {
        "lr": search.log_uniform(1e-3, 3.0),
        "momentum": search.uniform(0.0, 0.99),
        "decay": search.log_uniform(1e-6, 1e-2),
        "width": search.one_of(16, 32, 64),
    }

    def judge(setting: dict[str, Any]) -> float:
        width = setting["width"]
        model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
        optimizer = torch.optim.SGD(
            model.parameters(), lr=setting["lr"], momentum=setting["momentum"], weight_decay=setting["decay"]
        )
        run_dir = search.this_trial().run_dir
        trainer = Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=(), run_dir=run_dir, execution="eager")
        search.train_to_budget(
            trainer, train, DIGITS_EPOCHS, eval_dataset=valid, per_device_batch_size=100, resume="auto"
        )
        return float(min(trainer.run_history.get_metric_values("eval_loss_epoch")))

    def found(seed: int, folder: Path, **options: Any) -> Found:
        made = search.Search(
            space, judge, objectives="minimize", seed=seed, run_dir=folder, max_failures=None, trials=27, **options
        )
        results = made.run()
        made.close()
        return Found(results["best"]["values"]["default"], sum(len(trial["curve"]) for trial in results["trials"]))

    return Task(
        "digits, loss on validation data",
        -1,
        {
            "median pruning": lambda seed, folder: found(seed, folder, pruner="median"),
            "promotion": lambda seed, folder: found(seed, folder, promotion=search.Halving(1, DIGITS_EPOCHS)),
        },
    )


# The section --------------------------------------------------------------------------------------------------------


def compared(task: Task, seeds: int) -> dict[str, list[Found]]:
    """Return what both ways find, seed by seed."""
    found: dict[str, list[Found]] = {name: [] for name in task.ways}
    for seed in range(seeds):
        for name, way in task.ways.items():
            with tempfile.TemporaryDirectory() as folder:
                found[name].append(way(seed, Path(folder) / "search"))
            print(task.name, seed, name, found[name][-1], flush=True)
    return found


def rows_of(task: Task, found: dict[str, list[Found]]) -> list[str]:
    """Return the rows of a task."""
    means = {name: statistics.mean(one.best for one in every) for name, every in found.items()}
    epochs = {name: statistics.mean(one.epochs for one in every) for name, every in found.items()}
    rows, before = [], ""
    for name, every in found.items():
        values = [one.best for one in every]
        bar = ""
        if name.startswith("median"):
            before = name
        else:
            part = epochs[name] / epochs[before]
            is_met = part <= 1 / PART and task.sign * (means[name] - means[before]) >= 0
            bar = f"{part:.2f} of the epochs: {'met' if is_met else 'MISSED'}"
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        rows.append(
            f"| {task.name} | {name} | {means[name]:.4g} | {spread:.2g} | {min(values):.4g} | {max(values):.4g} | "
            f"{epochs[name]:,.0f} | {bar} |"
        )
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Search, and print the section."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--write", action="store_true", help="write the section of RESULTS.md")
    options = parser.parse_args(arguments)
    tasks = [table_task(read_fidelities(data_folder("nasbench201"))), digits_task()]
    rows = [row for task in tasks for row in rows_of(task, compared(task, options.seeds))]
    section = "\n".join(
        [
            "## Search over trials: promotion beside median pruning",
            "",
            provenance("nas.promotion", PACKAGES, seeds=str(options.seeds)),
            "",
            "Trials are drawn at random where nothing else is said. NAS-Bench-201: 100 trials with median pruning, "
            "which sees validation accuracy after 12 epochs; 128 trials with successive halving, of which one of 64 "
            "continues to 200 epochs. Digits: "
            "27 trials of 27 epochs, judged by the lowest loss on validation data; successive halving with budgets of "
            "1, 3, 9 and 27 epochs. The bar, for each row of promotion beside the median pruning above it: as good on "
            "average, with a third of the epochs.",
            "",
            "| task | way | best objective, mean | spread | lowest | highest | epochs, mean | bar |",
            "|---|---|--:|--:|--:|--:|--:|---|",
            *rows,
        ]
    )
    print(section)
    if options.write:
        write_section(SECTION, section)


if __name__ == "__main__":
    main()
