"""Fashion-MNIST: seconds until a CNN has 91% of the test images right, by hand, with Treadle, with its peers."""

import gc
import random
from collections.abc import Callable
from functools import partial
from importlib import import_module
from time import perf_counter
from typing import Any

import torch

from benchmarks.execution.fashion_task import Columns, Task, train_by_hand
from benchmarks.execution.session import Findings
from benchmarks.execution.work import RATE, make_cnn

TARGET = 0.91
MOST_EPOCHS = 15
SEEDS = 3
BATCH_SIZE = 128
WORKERS = 4
MEAN, DEVIATION = 0.2860, 0.3530

Train = Callable[[Task], list[float]]


def contenders(smoke: bool) -> dict[str, Train]:
    """Return what is measured, by name."""
    workers = 0 if smoke else WORKERS
    graph = "eager" if smoke else "graph"
    return {
        "treadle graph, data on the device": partial(by_treadle, execution=graph),
        "treadle graph + compile, data on the device": partial(by_treadle, execution=graph, compiled=not smoke),
        "treadle eager, data on the device": partial(by_treadle, execution="eager"),
        "treadle eager, TensorDataset": partial(by_treadle, execution="eager", resident=False),
        "hand-written loop, DataLoader": partial(train_by_hand, workers=0),
        f"hand-written loop, DataLoader with {workers} workers": partial(train_by_hand, workers=workers),
        f"Lightning, DataLoader with {workers} workers": partial(by_peer, module="lightning_trainer", workers=workers),
        f"transformers Trainer, {workers} workers": partial(by_peer, module="transformers_trainer", workers=workers),
    }


def by_treadle(task: Task, **options: Any) -> list[float]:
    """Train with Treadle."""
    accuracies: list[float] = import_module("benchmarks.contenders.treadle_execution").train_to_accuracy(
        task, **options
    )
    return accuracies


def by_peer(task: Task, module: str, workers: int) -> list[float]:
    """Train with a peer."""
    peer = import_module(f"benchmarks.contenders.{module}")
    accuracies: list[float] = peer.train_to_accuracy(task, workers)
    return accuracies


def measure(findings: Findings) -> None:
    """Let everybody train once for each seed, in a new order each time, as long as there is time."""
    options = findings.options
    data = findings.attempt("the data", partial(load_data, options.smoke))
    if data is None:
        return
    findings.data |= {"target": 0.5 if options.smoke else TARGET, "runs": []}
    ways = contenders(options.smoke)
    if options.captures:
        findings.attempt("warm-up", partial(warm_up, findings, data))
    chance = random.Random(options.seed)
    longest: dict[str, float] = {}
    for seed in range(1 if options.smoke else SEEDS):
        for name in chance.sample(list(ways), len(ways)):
            if name in findings.data["missing"] or not findings.has_time(longest.get(name, 0.0)):
                continue
            run = findings.attempt(name, partial(one_run, findings, ways[name], data, seed))
            if run is not None:
                longest[name] = max(run["seconds"], longest.get(name, 0.0))
                findings.data["runs"].append({"name": name, "seed": seed, **run})
                findings.say(f"{name}: {run['seconds']:.1f} s, {run['accuracies']}")
                findings.save()
    findings.data["complete"] = len(findings.data["runs"]) == len(ways) * (1 if options.smoke else SEEDS)


def one_run(findings: Findings, train: Train, data: tuple[Columns, Columns], seed: int) -> dict[str, Any]:
    """Train once; return how long it took and the accuracy after each epoch."""
    task = make_task(findings, data, seed)
    gc.collect()
    began = perf_counter()
    accuracies = train(task)
    return {"seconds": perf_counter() - began, "accuracies": [round(accuracy, 4) for accuracy in accuracies]}


def make_task(findings: Findings, data: tuple[Columns, Columns], seed: int, *, most_epochs: int = MOST_EPOCHS) -> Task:
    """Return the task, with the same initial weights for the same seed."""
    options = findings.options
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make_cnn().to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    epochs = 2 if options.smoke else most_epochs
    return Task(model, optimizer, *data, BATCH_SIZE, findings.data["target"], epochs, seed, options.device)


def warm_up(findings: Findings, data: tuple[Columns, Columns]) -> None:
    """Have the libraries of the device choose their kernels, for everybody's shapes, before the first run."""
    few = tuple(tuple(part[: BATCH_SIZE * 4] for part in columns) for columns in data)
    train_by_hand(make_task(findings, few, 0, most_epochs=1), workers=0)  # type: ignore[arg-type]


def load_data(smoke: bool) -> tuple[Columns, Columns]:
    """Return training and test images, normalised, with their labels; in a smoke test something like them."""
    if smoke:
        return _something(256), _something(64)
    fashion = import_module("examples.vision.fashion")
    return _normalised(*fashion.read_split("train")), _normalised(*fashion.read_split("t10k"))


def _normalised(images: torch.Tensor, labels: torch.Tensor) -> Columns:
    return images.float().div_(255).sub_(MEAN).div_(DEVIATION).unsqueeze(1), labels.long()


def _something(count: int) -> Columns:
    generator = torch.Generator().manual_seed(count)
    labels = torch.randint(10, (count,), generator=generator)
    images = torch.randn(count, 1, 28, 28, generator=generator)
    images[torch.arange(count), 0, labels, :] += 4.0
    return images, labels
