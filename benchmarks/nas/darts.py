"""The DARTS space (16 channels, 8 cells) on Fashion-MNIST: milliseconds per search step, a search, what it found.

    python -m benchmarks.nas.darts --out results --seconds 1500

First it checks that `DartsTrainer` ends where a loop by hand ends (`parity`), then it measures (`steps`), searches and
trains what was found; `--sections` takes some of these. Where `--seconds` leaves less than both want, the search has
two thirds of it. Everything found is written to `--out` as soon as it is known, so that a time limit loses nothing.
`--smoke` runs all of it in tiny sizes, without a GPU and without the data.

A machine that lends ten minutes at a time does it in one call with `--seconds 570 --search-epochs 4 --train-epochs 8`.
"""

import argparse
import json
import re
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.execution.session import Findings, Options
from benchmarks.nas.darts_hand import HandSupernet, make_step
from benchmarks.nas.darts_parity import check_parity
from benchmarks.provenance import provenance
from benchmarks.results import write_section
from treadle import Trainer, TrainerCallback, nas
from treadle.data import InMemoryDataset
from treadle.nas.zoo import DartsSpace

SECTIONS = ("parity", "steps", "search", "train")
WIDTH, CELLS = 16, 8
MEAN, DEVIATION = 0.2860, 0.3530
SEARCH_SECONDS = 600.0
PACKAGES = ("torch", "triton", "treadle")

Pictures = tuple[Tensor, Tensor]


def load(split: str, options: Options) -> Pictures:
    """Return images, normalised, and labels; in a smoke test something like them."""
    if options.smoke:
        generator = torch.Generator().manual_seed(len(split))
        return torch.randn(32, 1, 8, 8, generator=generator), torch.randint(10, (32,), generator=generator)
    images, labels = import_module("examples.vision.fashion").read_split(split)
    return images.float().div_(255).sub_(MEAN).div_(DEVIATION).unsqueeze(1), labels.long()


def size_of_space(options: Options) -> tuple[int, int]:
    """Return the width and the number of cells."""
    return (4, 3) if options.smoke else (WIDTH, CELLS)


def halves(pictures: Pictures, seed: int) -> tuple[Pictures, Pictures]:
    """Return the two halves of the data, which weights and architecture learn from."""
    order = torch.randperm(len(pictures[1]), generator=torch.Generator().manual_seed(seed))
    first, second = order.chunk(2)
    return (pictures[0][first], pictures[1][first]), (pictures[0][second], pictures[1][second])


def moved(batch: Any, generator: torch.Generator) -> Any:
    """Return a batch of which every picture is shifted by up to two points, and every other one mirrored."""
    images, labels = batch
    count, _, rows, columns = images.shape
    padded = F.pad(images, (2, 2, 2, 2), value=-MEAN / DEVIATION)
    down, right = torch.randint(5, (2, count, 1), generator=generator, device=images.device)
    lines = (down + torch.arange(rows, device=images.device)).view(count, 1, rows, 1)
    places = (right + torch.arange(columns, device=images.device)).view(count, 1, 1, columns)
    shifted = padded[torch.arange(count, device=images.device).view(-1, 1, 1, 1), 0, lines, places]
    flip = torch.rand(count, 1, 1, 1, generator=generator, device=images.device) < 0.5
    return [torch.where(flip, shifted.flip(-1), shifted), labels]


def make_space(options: Options, *, channels_last: bool) -> nn.Module:
    """Return the space on the device."""
    torch.manual_seed(options.seed)
    space: nn.Module = DartsSpace(*size_of_space(options), in_channels=1, affine=False).to(options.device)
    return space.to(memory_format=torch.channels_last) if channels_last else space  # type: ignore[call-overload]


# Milliseconds per step ----------------------------------------------------------------------------------------


class Clock(TrainerCallback):
    """Takes the time of single search steps, each an update of the architecture and one of the weights."""

    def __init__(self, warm_up: int, steps: int) -> None:
        self._warm_up, self._steps = warm_up, steps
        self.times: list[float] = []
        self._began = 0.0

    def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
        """Note the time after every second update."""
        if trainer.progress.step % 2:
            return
        _wait(trainer.device)
        now = perf_counter()
        if trainer.progress.step // 2 > self._warm_up:
            self.times.append(1000 * (now - self._began))
        self._began = now
        if trainer.progress.step // 2 >= self._warm_up + self._steps:
            trainer.request_stop("enough steps")


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def by_hand(options: Options, batch: int, steps: int, *, half: bool, channels_last: bool) -> list[float]:
    """Return the milliseconds of steps of the loop written by hand, on batches that are on the device already."""
    torch.manual_seed(options.seed)
    model = HandSupernet(*size_of_space(options)).to(options.device)
    if channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    step = make_step(model, half=half)
    images, labels = (part[: 2 * batch].to(options.device) for part in load("train", options))
    train, validation = (images[:batch], labels[:batch]), (images[batch:], labels[batch:])
    times = []
    warm_up = 1 if options.smoke else 3
    for number in range(warm_up + steps):
        _wait(options.device)
        began = perf_counter()
        step(train, validation)
        _wait(options.device)
        if number >= warm_up:
            times.append(1000 * (perf_counter() - began))
    return times


def by_treadle(options: Options, batch: int, steps: int, *, half: bool, channels_last: bool, **how: Any) -> list[float]:
    """Return the milliseconds of steps of `DartsTrainer`, its data on the device."""
    space = make_space(options, channels_last=channels_last)
    train, validation = halves(load("train", options), options.seed)
    clock = Clock(warm_up=1 if options.smoke else 8, steps=steps)
    if not options.captures:
        how = {"execution": "eager"}
    trainer = nas.DartsTrainer(
        space,
        F.cross_entropy,
        None,
        None,
        100,
        InMemoryDataset(*train),
        validation_dataset=InMemoryDataset(*validation),
        batch_size=batch,
        precision="bf16" if half else "fp32",
        seed=options.seed,
        device=options.device,
        callbacks=(clock,),
        loader_options={"drop_last": True},
        **how,
    )
    trainer.fit(log_every=1_000_000)
    return clock.times


def contenders(options: Options) -> dict[str, tuple[int, Callable[[int], list[float]]]]:
    """Return what is measured: by name its batch, and what times so many steps."""
    small, large = (4, 8) if options.smoke else (64, 256)
    plain = {"half": False, "channels_last": False}
    fast = {"half": True, "channels_last": True}
    found: dict[str, tuple[int, Callable[[int], list[float]]]] = {}

    def add(name: str, batch: int, measure: Callable[..., list[float]], **how: Any) -> None:
        found[f"batch {batch}, {name}"] = (batch, lambda steps: measure(options, batch, steps, **how))

    add("hand-written, TF32", small, by_hand, **plain)
    add("treadle eager, TF32", small, by_treadle, **plain, execution="eager")
    add("treadle graph, TF32", small, by_treadle, **plain, execution="graph")
    add("hand-written, TF32", large, by_hand, **plain)
    add("hand-written, bf16 channels-last", large, by_hand, **fast)
    add("treadle eager, bf16 channels-last", large, by_treadle, **fast, execution="eager")
    add("treadle graph, bf16 channels-last", large, by_treadle, **fast, execution="graph")
    add("treadle graph, TF32", large, by_treadle, **plain, execution="graph")
    return found


def measure_steps(findings: Findings, wanted: Sequence[str]) -> None:
    """Time every contender by itself."""
    options = findings.options
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    findings.data["steps"] = {}
    for name, (batch, measure) in contenders(options).items():
        if (wanted and not any(word in name for word in wanted)) or not findings.has_time(30.0):
            continue
        if options.captures:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        times = findings.attempt(name, partial(measure, 1 if options.smoke else 12))
        if not times:
            continue
        peak = torch.cuda.max_memory_allocated() / 2**30 if options.captures else 0.0
        found = {"batch": batch, "ms": statistics.median(times), "times": times, "peak_gib": round(peak, 2)}
        findings.data["steps"][name] = found
        findings.say(f"{name}: {found['ms']:.1f} ms per search step, peak {peak:.1f} GiB")
        findings.save()
    ratios(findings)


def ratios(findings: Findings) -> None:
    """Say how many times as fast the recorded steps are."""
    steps = findings.data["steps"]
    small, large = (4, 8) if findings.options.smoke else (64, 256)
    pairs = {
        f"batch {small}": (f"batch {small}, hand-written, TF32", f"batch {small}, treadle graph, TF32"),
        f"batch {large}": (f"batch {large}, hand-written, TF32", f"batch {large}, treadle graph, bf16 channels-last"),
        f"batch {large}, both in bf16": (
            f"batch {large}, hand-written, bf16 channels-last",
            f"batch {large}, treadle graph, bf16 channels-last",
        ),
    }
    found = {
        name: round(steps[one]["ms"] / steps[other]["ms"], 2)
        for name, (one, other) in pairs.items()
        if one in steps and other in steps
    }
    findings.data["times as fast"] = found
    findings.say(f"times as fast as the loop by hand: {found}")
    findings.save()


# The search ---------------------------------------------------------------------------------------------------


class Deadline(TrainerCallback):
    """Ends a run before an epoch that would not be over in time, if it takes as long as the one before."""

    def __init__(self, seconds: float) -> None:
        self._epoch_began = monotonic()
        self._end = self._epoch_began + seconds

    def on_train_epoch_end(self, trainer: Any, **kwargs: Any) -> None:
        """Ask to stop if the time is over, or would be."""
        now = monotonic()
        taken, self._epoch_began = now - self._epoch_began, now
        if now + taken > self._end:
            trainer.request_stop("the time is over")


def accuracy(outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Return the share that was recognised."""
    return {"accuracy": (outputs.argmax(1) == targets).float().mean()}


def run_search(findings: Findings, epochs: int, seconds: float, batch: int) -> None:
    """Search inside of a time limit, and keep the architecture."""
    options = findings.options
    space = make_space(options, channels_last=True)
    train, validation = halves(load("train", options), options.seed)
    graph = "graph" if options.captures else "eager"
    trainer = nas.DartsTrainer(
        space,
        F.cross_entropy,
        accuracy,
        lambda parameters: torch.optim.SGD(
            parameters, lr=0.1 if batch > 64 else 0.025, momentum=0.9, weight_decay=3e-4
        ),
        epochs,
        InMemoryDataset(*train, transform=moved),
        validation_dataset=InMemoryDataset(*validation),
        batch_size=batch,
        scheduler=partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=epochs, eta_min=1e-3),
        arc_learning_rate=6e-4,
        precision="bf16",
        execution=graph,
        seed=options.seed,
        device=options.device,
        callbacks=(Deadline(seconds), Progress(findings)),
        loader_options={"drop_last": True},
    )
    began = perf_counter()
    result = trainer.fit(scheduler_interval="epoch", log_every=200)
    taken = perf_counter() - began
    findings.data["search"] = {
        "seconds": taken,
        "epochs": result.epochs,
        "steps": result.steps,
        "batch": batch,
        "ms_per_search_step": 2000 * taken / result.steps,
        "architecture": trainer.export(),
        "probabilities": {
            row: {str(key): value for key, value in own.items()} for row, own in trainer.probabilities().items()
        },
        "validation_accuracy": trainer.storage.latest().get("validation_accuracy", (None, 0))[0],
    }
    findings.say(f"searched for {taken / 60:.1f} minutes, {result.epochs} epochs: {json.dumps(trainer.export())}")
    findings.save()


class Progress(TrainerCallback):
    """Says how far a run is after each epoch."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings

    def on_training_run_epoch_end(self, trainer: Any, **kwargs: Any) -> None:
        """Say it."""
        history = trainer.run_history
        losses = history.get_metric_values("train_loss_epoch")
        self._findings.say(f"epoch {len(losses)}: loss {losses[-1]:.4f}")


# The network --------------------------------------------------------------------------------------------------


def run_training(findings: Findings, epochs: int, seconds: float, width: int, cells: int) -> None:
    """Train the network that was found from scratch, and evaluate it on the test pictures."""
    options = findings.options
    architecture = findings.data.get("search", {}).get("architecture")
    if architecture is None:
        findings.skip("train", "no search has ended")
        return
    torch.manual_seed(options.seed)
    space = DartsSpace(width, cells, in_channels=1, drop_path=0.1)
    network = nas.freeze(space, architecture).to(options.device)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, weight_decay=3e-4, nesterov=True)
    images, labels = load("train", options)
    trainer = Trainer(
        network,
        nn.CrossEntropyLoss(),
        optimizer,
        (Deadline(seconds), Progress(findings)),
        precision="bf16",
        execution="graph" if options.captures else "eager",
        seed=options.seed,
        device=options.device,
    )
    began = perf_counter()
    result = trainer.train(
        InMemoryDataset(images, labels, transform=moved),
        num_epochs=epochs,
        per_device_batch_size=8 if options.smoke else 128,
        clip_norm=5.0,
        create_scheduler_fn=partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=epochs),
        scheduler_interval="epoch",
        train_dataloader_kwargs={"drop_last": True},
        log_every=200,
    )
    taken = perf_counter() - began
    test_images, test_labels = load("t10k", options)
    outputs = trainer.predict(InMemoryDataset(test_images, test_labels), per_device_batch_size=500)
    right = (outputs.argmax(1) == test_labels).float().mean()
    findings.data["train"] = {
        "seconds": taken,
        "epochs": result.epochs,
        "width": width,
        "cells": cells,
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "test_accuracy": 100 * float(right),
    }
    findings.say(
        f"trained for {taken / 60:.1f} minutes, {result.epochs} epochs: {100 * float(right):.2f}% on the test data"
    )
    findings.save()


def as_markdown(data: dict[str, Any]) -> str:
    """Return the section for RESULTS.md."""
    # Folders are of this machine, and of no use to whoever measures again.
    lines = ["## The DARTS space on Fashion-MNIST", "", re.sub(r" --out[ =][^\s`]+", "", data["facts"]), ""]
    lines += ["| way | batch | ms per search step | peak GiB |", "|---|--:|--:|--:|"]
    for name, one in data.get("steps", {}).items():
        lines.append(f"| {name.split(', ', 1)[1]} | {one['batch']} | {one['ms']:.0f} | {one['peak_gib']:.1f} |")
    faster = ", ".join(f"{name}: {value:.2f}" for name, value in data.get("times as fast", {}).items())
    lines += ["", f"Times as fast as the loop by hand: {faster} (bars: 2.5 at batch 64, 2 at batch 256)."]
    for execution, one in data.get("parity", {}).items():
        said = "agrees" if one["agree"] else "does NOT agree"
        lines.append(
            f"Parity: {execution} {said} with the loop by hand after {one['steps']} steps; the architecture is "
            f"{one['architecture']:.1e} apart in the mean, the weights {one['weights']:.1e}."
        )
    lines += [f"Missing: {name} ({why})." for name, why in data["missing"].items()]
    search, train = data.get("search"), data.get("train")
    if search and train:
        lines += [
            "",
            f"Search: {search['seconds'] / 60:.1f} minutes, {search['epochs']} epochs at batch {search['batch']}. The "
            f"network that it found, with {train['width']} channels, {train['cells']} cells and "
            f"{train['parameters']:,} parameters, trained for {train['epochs']} epochs ({train['seconds'] / 60:.1f} "
            f"minutes): {train['test_accuracy']:.2f}% of the test data.",
        ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> Findings | None:
    """Run the sections that were asked for, in order, or write what they found into RESULTS.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sections", default=",".join(SECTIONS))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=1500.0, help="after how long to begin nothing more")
    parser.add_argument("--only", nargs="*", default=[], help="of the steps, those whose names hold one of these words")
    parser.add_argument("--search-seconds", type=float, default=SEARCH_SECONDS)
    parser.add_argument("--search-epochs", type=int, default=10)
    parser.add_argument("--search-batch", type=int, default=256)
    parser.add_argument("--train-seconds", type=float, default=300.0)
    parser.add_argument("--train-epochs", type=int, default=20)
    parser.add_argument("--train-width", type=int, default=24)
    parser.add_argument("--train-cells", type=int, default=8)
    parser.add_argument("--architecture", type=Path, help="a JSON file with an architecture, in the place of a search")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--write-results", type=Path, metavar="JSON", help="write this file into RESULTS.md")
    parsed = parser.parse_args(arguments)
    if parsed.write_results:
        write_section("nas-darts", as_markdown(json.loads(parsed.write_results.read_text("utf-8"))))
        return None
    unknown = set(parsed.sections.split(",")) - set(SECTIONS)
    if unknown:
        parser.error(f"unknown sections {sorted(unknown)}; there are {SECTIONS}")
    device = torch.device("cuda" if torch.cuda.is_available() and not parsed.smoke else "cpu")
    options = Options(device, parsed.smoke, parsed.seed, parsed.out)
    findings = Findings("nas_darts", options, parsed.seconds, facts=provenance("nas_darts", PACKAGES))
    if parsed.architecture is not None:
        findings.data["search"] = {"architecture": json.loads(parsed.architecture.read_text())}
    epochs, batch = (1, 8) if parsed.smoke else (parsed.search_epochs, parsed.search_batch)
    width, cells = (4, 3) if parsed.smoke else (parsed.train_width, parsed.train_cells)
    train_epochs = 1 if parsed.smoke else parsed.train_epochs
    share = 2 / 3 if "train" in parsed.sections.split(",") else 1.0

    def left() -> float:
        return max(parsed.seconds - findings.seconds - 10.0, 0.0)

    work: dict[str, Callable[[], None]] = {
        "parity": lambda: check_parity(findings, load("train", options), *size_of_space(options)),
        "steps": partial(measure_steps, findings, parsed.only),
        "search": lambda: run_search(findings, epochs, min(parsed.search_seconds, left() * share), batch),
        "train": lambda: run_training(findings, train_epochs, min(parsed.train_seconds, left()), width, cells),
    }
    for section in parsed.sections.split(","):
        if findings.has_time():
            if section == "steps":
                work[section]()
            else:
                findings.attempt(section, work[section])
    findings.data["complete"] = True
    findings.data["ended"] = time.strftime("%Y-%m-%d")
    findings.save()
    return findings


if __name__ == "__main__":
    main()
