"""What a data set of your own costs: batches per second against torch's loader, and a run of an MLP on one.

Run by `python -m benchmarks.loop.own_data`. Batches: both sides draw the same shuffled epochs of the same data set, and
whoever leaves a sample out, or gives another one, ends the benchmark. Run: the MLP of `benchmarks.job` on rows from
`__getitem__`, by a loop written by hand with a `DataLoader` and by a `Trainer`, the building of these included.
Sides take turns in a new random order each round, and a ratio is to torch of its own round.
"""

import argparse
import gc
import io
import multiprocessing
import os
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch
from torch.nn.functional import pad
from torch.utils.data import DataLoader, Dataset

from benchmarks.job import BATCH_SIZE, CLASSES, FEATURES, LOSS_FUNC, make_job
from benchmarks.provenance import provenance
from benchmarks.results import write_section
from treadle import Trainer
from treadle.data import Stream, make_loader

BATCH_SIZES = (8, 32, 128)
RUN_BAR = 1.05
NOTES = """\
Batches: draw one shuffled epoch of a data set of your own, batch after batch, and do nothing with it; 1 torch thread;
workers live on from epoch to epoch. CPU: time of the process and its workers. Ratio: batches per second to those of
torch's `DataLoader` in the same round; "again" is that loader once more, and how far it strays from 1 is what this run
cannot resolve. Rows are pairs of 64 numbers and a class; images are 3x32x32, padded by 4, cropped, flipped by chance.

Run: the MLP 64-64-64-10 with AdamW, batch 32, on the rows of a data set of your own, shuffled; by hand with a
`DataLoader`, and by a `Trainer` with default callbacks and without. Time: of building the loader or the trainer, and of
the whole run."""


class Rows(Dataset[Any]):
    """What most people write.

    Args:
        count: How many samples there are.
    """

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.inputs = torch.randn(count, FEATURES, generator=generator)
        self.targets = torch.arange(count)

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> Any:
        return self.inputs[index], self.targets[index]


class Dicts(Rows):
    """Samples as models of transformers take them."""

    def __getitem__(self, index: int) -> Any:
        return {"inputs": self.inputs[index], "labels": index}


class Together(Rows):
    """Fetched batch by batch."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [(self.inputs[index], self.targets[index]) for index in indices]


class CropAndFlip(Rows):
    """Images, augmented by torch's generator."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.images = torch.rand(count, 3, 32, 32, generator=torch.Generator().manual_seed(0))

    def __getitem__(self, index: int) -> Any:
        top, left = torch.randint(9, (2,)).tolist()
        image = pad(self.images[index], (4, 4, 4, 4))[:, top : top + 32, left : left + 32]
        return (image.flip(2) if torch.rand(()) < 0.5 else image), self.targets[index]


class ByPython(Rows):
    """Trivial samples that draw from Python's generator."""

    def __getitem__(self, index: int) -> Any:
        return self.inputs[index] * random.random(), self.targets[index]


class ByNumPy(Rows):
    """Trivial samples that draw from NumPy's generator."""

    def __getitem__(self, index: int) -> Any:
        return self.inputs[index] * np.random.rand(), self.targets[index]


class ByTorch(Rows):
    """Trivial samples that draw from torch's generator."""

    def __getitem__(self, index: int) -> Any:
        return self.inputs[index] * torch.rand(()), self.targets[index]


@dataclass(frozen=True)
class Kind:
    """One line of the table: a data set, and the bar for it, as a share of torch's batches per second."""

    name: str
    make: Callable[[int], Rows]
    bar: float | None


KINDS = (
    Kind("rows, draws nothing", Rows, 0.95),
    Kind("rows as dicts, draws nothing", Dicts, 0.95),
    Kind("rows by `__getitems__`, draws nothing", Together, 0.95),
    Kind("crop and flip, by torch's generator", CropAndFlip, 0.8),
    Kind("rows times `random.random()`", ByPython, 0.4),
    Kind("rows times `np.random.rand()`", ByNumPy, None),
    Kind("rows times `torch.rand(())`", ByTorch, None),
)

Draw = Callable[[int], Iterable[Any]]


def main() -> None:
    """Measure, print the tables, write the section."""
    options = parse_options()
    os.environ.update(CUDA_VISIBLE_DEVICES="")
    torch.set_num_threads(1)
    gc.freeze()
    tables = [table_of(workers, options) for workers in options.workers] + [table_of_runs(options)]
    facts = provenance(
        "loop.own_data",
        ("torch", "treadle", "numpy"),
        rounds=f"{options.rounds}, after one; epochs of {options.samples} samples, runs of {options.steps} steps",
        load=f"{os.getloadavg()[2]:.1f} programs on the machine at a time, in the last quarter of an hour",
    )
    section = "\n\n".join(["## A data set of your own", facts, NOTES, *tables])
    print(section)
    if options.no_write:
        print("RESULTS.md left as it is (--no-write).")
    else:
        write_section("own-data", section)


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loop.own_data", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="timed rounds, after one that is discarded")
    parser.add_argument("--samples", type=int, default=8_000, help="samples of an epoch")
    parser.add_argument("--steps", type=int, default=1_000, help="steps of a run")
    parser.add_argument("--workers", type=int, nargs="*", default=[0, 1], help="numbers of workers, a table each")
    parser.add_argument("--seed", type=int, default=0, help="of the order of turns")
    parser.add_argument("--no-write", action="store_true", help="print, but leave RESULTS.md as it is")
    options = parser.parse_args()
    if options.rounds < 2 or options.samples < 128:
        parser.error(f"--rounds {options.rounds} --samples {options.samples}: needs 2 rounds and 128 samples at least")
    return options


# Batches ----------------------------------------------------------------------------------------------------


def by_torch(data: Rows, batch_size: int, workers: int) -> Draw:
    """Draw from torch's loader."""
    kept = {"persistent_workers": True} if workers else {}
    loader = DataLoader(data, batch_size=batch_size, shuffle=True, num_workers=workers, **kept)  # type: ignore[arg-type]
    return lambda epoch: loader


def by_treadle(data: Rows, batch_size: int, workers: int) -> Draw:
    """Draw from a stream, as a trainer does."""
    kept = {"persistent_workers": True} if workers else {}
    loader = make_loader(data, shuffle=True, batch_size=batch_size, num_workers=workers, **kept)
    stream = Stream(loader, device=torch.device("cpu"), seed=1)

    def draw(epoch: int) -> Iterator[Any]:
        stream.begin(epoch)
        while stream.has_next():
            yield from stream.window(1)

    return draw


SIDES: dict[str, Callable[[Rows, int, int], Draw]] = {"torch": by_torch, "again": by_torch, "treadle": by_treadle}


def table_of(workers: int, options: argparse.Namespace) -> str:
    """Return the table of all kinds of data and sizes of batches, fetched by so many workers."""
    lines = [
        f"### Batches, {f'{workers} worker(s)' if workers else 'no workers'}\n",
        "| data set | batch | CPU ratio | IQR | wall ratio | again, CPU | torch, µs a batch | Treadle | bar |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for kind in KINDS:
        for batch_size in BATCH_SIZES:
            lines.append(line_of(kind, batch_size, workers, options))
            print(lines[-1], file=sys.stderr)
    return "\n".join(lines)


def line_of(kind: Kind, batch_size: int, workers: int, options: argparse.Namespace) -> str:
    """Let both sides take their turns, and return a line of the table."""
    data = kind.make(options.samples)
    opened = {name: side(data, batch_size, workers) for name, side in SIDES.items()}
    for name, draw in opened.items():
        require_every_sample(name, kind, data, draw(0))
    order = random.Random(options.seed)
    rounds = []
    for number in range(1, options.rounds + 1):
        turns = order.sample(list(opened), len(opened))
        rounds.append({name: measure(opened[name], number) for name in turns})
    cpu, wall, again = (
        [times["torch"][clock] / times[name][clock] for times in rounds]
        for clock, name in ((0, "treadle"), (1, "treadle"), (0, "again"))
    )
    taken = [median(times[name][0] for times in rounds) for name in ("torch", "treadle")]
    low, _, high = quantiles(cpu, n=4, method="inclusive")
    bar = "" if kind.bar is None else f"{kind.bar} {'met' if median(cpu) >= kind.bar else '**missed**'}"
    return (
        f"| {kind.name} | {batch_size} | {median(cpu):.2f} | {low:.2f}-{high:.2f} | {median(wall):.2f} "
        f"| {median(again):.2f} | {taken[0]:.1f} | {taken[1]:.1f} | {bar} |"
    )


def require_every_sample(name: str, kind: Kind, data: Rows, batches: Iterable[Any]) -> None:
    """End the benchmark if a side leaves a sample out, or collates it otherwise: its time would mean nothing."""
    drawn = [list(batch.values()) if isinstance(batch, dict) else batch for batch in batches]
    inputs, targets = (torch.cat(part) for part in zip(*drawn, strict=True))
    order = targets.argsort()
    same = torch.equal(targets[order], data.targets)
    if same and "nothing" in kind.name:
        same = torch.equal(inputs[order], data.inputs)
    if not same:
        sys.exit(f"{name}, {kind.name}: an epoch is not every sample once; nothing was written")


def measure(draw: Draw, epoch: int) -> tuple[float, float]:
    """Return the microseconds of a batch over one epoch: of the CPU, workers included, and by the clock."""
    gc.collect()
    count, cpu, began_at = 0, process_time() + cpu_of_workers(), perf_counter()
    for _ in draw(epoch):
        count += 1
    passed = process_time() + cpu_of_workers() - cpu, perf_counter() - began_at
    return passed[0] / count * 1e6, passed[1] / count * 1e6


def cpu_of_workers() -> float:
    """Return the seconds that all threads of the workers that live have had of the CPU."""
    seconds = 0.0
    for worker in multiprocessing.active_children():
        for thread in Path(f"/proc/{worker.pid}/task").glob("*/schedstat"):
            seconds += int(thread.read_text(encoding="ascii").split()[0]) / 1e9
    return seconds


# A run ------------------------------------------------------------------------------------------------------


class Labelled(Rows):
    """Rows with a class."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.targets = torch.arange(count) % CLASSES


def run_by_hand(data: Rows) -> None:
    """Train one epoch with nothing around the step."""
    job = make_job([], 0)
    for inputs, targets in DataLoader(data, batch_size=BATCH_SIZE, shuffle=True):
        job.optimizer.zero_grad()
        LOSS_FUNC(job.model(inputs), targets).backward()
        job.optimizer.step()


def run_by_treadle(data: Rows, **options: Any) -> None:
    """Train one epoch with a trainer."""
    job = make_job([], 0)
    trainer = Trainer(job.model, loss_func=LOSS_FUNC, optimizer=job.optimizer, **options)
    trainer.train(data, num_epochs=1, per_device_batch_size=BATCH_SIZE)


RUNS: dict[str, Callable[[Rows], None]] = {
    "by hand, with a DataLoader": run_by_hand,
    "by hand, again": run_by_hand,
    "Treadle, default": run_by_treadle,
    "Treadle, callbacks=()": lambda data: run_by_treadle(data, callbacks=()),
}


def table_of_runs(options: argparse.Namespace) -> str:
    """Let all sides make their runs, and return the table."""
    data = Labelled(options.steps * BATCH_SIZE)
    order = random.Random(options.seed)
    rounds = []
    for number in range(options.rounds + 1):
        taken = {name: time_of(RUNS[name], data) for name in order.sample(list(RUNS), len(RUNS))}
        print(f"run {number} of {options.rounds}", file=sys.stderr)
        rounds += [taken] if number else []
    lines = [
        f"### A run of {options.steps} steps, set-up included\n",
        "| contender | CPU ratio | IQR | wall ratio | CPU, ms | bar |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    return "\n".join([*lines, *(line_of_run(name, rounds) for name in RUNS)])


def time_of(run: Callable[[Rows], None], data: Rows) -> tuple[float, float]:
    """Return the seconds of a run: of the CPU, and by the clock."""
    gc.collect()
    cpu, began_at = process_time(), perf_counter()
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        run(data)
    return process_time() - cpu, perf_counter() - began_at


def line_of_run(name: str, rounds: Sequence[dict[str, tuple[float, float]]]) -> str:
    """Return one line of the table of runs."""
    first = next(iter(RUNS))
    cpu, wall = ([taken[name][clock] / taken[first][clock] for taken in rounds] for clock in (0, 1))
    low, _, high = quantiles(cpu, n=4, method="inclusive")
    bar = f"{RUN_BAR} {'met' if median(cpu) <= RUN_BAR else '**missed**'}" if name.startswith("Treadle") else ""
    taken_ms = 1e3 * median(taken[name][0] for taken in rounds)
    return f"| {name} | {median(cpu):.3f} | {low:.3f}-{high:.3f} | {median(wall):.3f} | {taken_ms:.0f} | {bar} |"


if __name__ == "__main__":
    main()
