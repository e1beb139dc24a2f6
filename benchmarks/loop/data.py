"""How fast batches come, against torch's own loader, all contenders in one run on one thread of the CPU.

Run by `python -m benchmarks.loop.data`. Every contender draws the same shuffled epochs of the same samples and must
give each of them exactly once. Contenders take turns in a new random order each round, and a ratio is to torch's loader
of its own round: how many times as many batches per second.
"""

import argparse
import gc
import os
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from time import process_time
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from benchmarks.job import make_batches, make_job
from benchmarks.provenance import provenance
from benchmarks.results import write_section
from treadle.data import InMemoryDataset, Stream, make_loader

SHAPES = {"row of 64": (64,), "image, 1x28x28": (1, 28, 28)}
BATCH_SIZES = (32, 128)
STEPS = 500
"""Steps of the MLP that a batch of rows is compared with."""
MUCH = 0.2
"""The share of a step from which on the loader is called its bottleneck, as the monitor of a run does."""
NOTES = """\
Work: draw one shuffled epoch, batch after batch, and do nothing with it; 1 torch thread, no workers. Time: CPU time of
the process. Ratio: batches per second to those of torch's `DataLoader` over the same kind of data set in the same
round; the loader measured "again" is the same code, and how far its ratio strays from 1 is what this run cannot
resolve. Treadle's batches come through its `Stream`, as a trainer draws them: counted, and to be entered anywhere. A
data set "of your own" returns two rows of tensors from `__getitem__`. Treadle watches whether it draws, unless it says
that it draws nothing; what the seeds of one that does cost is in the section "A data set of your own".

Of a step: what drawing a batch of rows would take of a step of the MLP 64-64-64-10 with AdamW, written by hand, that
has to wait for it; from a fifth on the loader is the bottleneck, and a `ThroughputMonitor` says so."""


class Own(Dataset[Any]):
    """What most people write."""

    def __init__(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        self.inputs, self.targets = inputs, targets

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inputs[index], self.targets[index]


class Fixed(Own):
    """The same, with a promise."""

    draws_nothing = True


@dataclass(frozen=True)
class Case:
    """What is drawn: samples of a shape, in batches of a size."""

    shape: str
    batch_size: int
    inputs: torch.Tensor
    targets: torch.Tensor


@dataclass(frozen=True)
class Contender:
    """One line of a table: what makes the batches of an epoch, and whose batches per second it is compared with."""

    name: str
    open: Callable[[Case], Callable[[int], Iterable[Any]]]
    baseline: str


def with_torch(make: Callable[..., Any]) -> Callable[[Case], Callable[[int], Iterable[Any]]]:
    """Draw from torch's loader."""

    def open_case(case: Case) -> Callable[[int], Iterable[Any]]:
        loader = DataLoader(make(case.inputs, case.targets), batch_size=case.batch_size, shuffle=True)
        return lambda epoch: loader

    return open_case


def with_treadle(make: Callable[..., Any]) -> Callable[[Case], Callable[[int], Iterable[Any]]]:
    """Draw from a stream, as a trainer does."""

    def open_case(case: Case) -> Callable[[int], Iterable[Any]]:
        loader = make_loader(make(case.inputs, case.targets), shuffle=True, batch_size=case.batch_size)
        stream = Stream(loader, device=torch.device("cpu"), seed=1)

        def draw(epoch: int) -> Iterator[Any]:
            stream.begin(epoch)
            while stream.has_next():
                yield from stream.window(1)

        return draw

    return open_case


def by_hand(case: Case) -> Callable[[int], Iterable[Any]]:
    """Draw by the least that can be written."""

    def draw(epoch: int) -> Iterator[Any]:
        order = torch.randperm(len(case.targets), generator=torch.Generator().manual_seed(epoch))
        for indices in order.split(case.batch_size):
            yield case.inputs.index_select(0, indices), case.targets.index_select(0, indices)

    return draw


def a_part(inputs: torch.Tensor, targets: torch.Tensor) -> Subset[Any]:
    """Return all of the samples as a `Subset`, as `random_split` makes them."""
    return Subset(TensorDataset(inputs, targets), torch.randperm(len(targets)).tolist())


TENSORS, OWN = "DataLoader(TensorDataset)", "DataLoader(one's own)"
CONTENDERS = (
    Contender(TENSORS, with_torch(TensorDataset), TENSORS),
    Contender(f"{TENSORS}, again", with_torch(TensorDataset), TENSORS),
    Contender("Treadle, TensorDataset", with_treadle(TensorDataset), TENSORS),
    Contender("Treadle, Subset of one", with_treadle(a_part), TENSORS),
    Contender("Treadle, InMemoryDataset", with_treadle(InMemoryDataset), TENSORS),
    Contender("randperm and index_select", by_hand, TENSORS),
    Contender(OWN, with_torch(Own), OWN),
    Contender("Treadle, one's own", with_treadle(Own), OWN),
    Contender("Treadle, it draws nothing", with_treadle(Fixed), OWN),
)


def main() -> None:
    """Measure, print the table, write the section."""
    options = parse_options()
    os.environ.update(CUDA_VISIBLE_DEVICES="")
    torch.set_num_threads(1)
    gc.freeze()
    tables = [table_of(case, options) for case in make_cases(options)]
    facts = provenance(
        "data", ("torch", "treadle", "numpy"), rounds=f"{options.rounds} epochs of {options.samples} samples, after one"
    )
    section = "\n\n".join(["## Batches per second", facts, NOTES, *tables])
    print(section)
    if options.no_write:
        print("RESULTS.md left as it is (--no-write).")
    else:
        write_section("data", section)


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loop.data", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="timed epochs, after one that is discarded")
    parser.add_argument("--samples", type=int, default=30_000, help="samples of an epoch")
    parser.add_argument("--seed", type=int, default=0, help="of samples and the order of turns")
    parser.add_argument("--no-write", action="store_true", help="print, but leave RESULTS.md as it is")
    options = parser.parse_args()
    if options.rounds < 2 or options.samples < 1:
        parser.error(f"--rounds {options.rounds} --samples {options.samples}: needs 2 rounds and 1 sample at least")
    return options


def make_cases(options: argparse.Namespace) -> Iterator[Case]:
    """Draw the samples of each case; a target is the number of its sample, by which the work is checked."""
    for shape, size in SHAPES.items():
        inputs = torch.randn(options.samples, *size, generator=torch.Generator().manual_seed(options.seed))
        for batch_size in BATCH_SIZES:
            yield Case(shape, batch_size, inputs, torch.arange(options.samples))


def table_of(case: Case, options: argparse.Namespace) -> str:
    """Let all contenders take their turns in one case, and return its table."""
    opened = {contender: contender.open(case) for contender in CONTENDERS}
    for contender, draw in opened.items():
        require_parity(contender, case, draw(0))
    order = random.Random(options.seed)
    rounds = []
    for number in range(1, options.rounds + 1):
        turns = order.sample(CONTENDERS, len(CONTENDERS))
        rounds.append({contender.name: measure(opened[contender], number) for contender in turns})
        print(f"{case.shape}, batch {case.batch_size}: round {number} of {options.rounds}", file=sys.stderr)
    step = step_us(case, options) if case.shape == next(iter(SHAPES)) else None
    return as_markdown(case, rounds, step)


def require_parity(contender: Contender, case: Case, batches: Iterable[Any]) -> None:
    """End the benchmark if a contender gives other samples: its time would mean nothing."""
    drawn = [(inputs, targets) for inputs, targets in batches]
    inputs, targets = (torch.cat(part) for part in zip(*drawn, strict=True))
    order = targets.argsort()
    whole = all(len(targets) == case.batch_size for _, targets in drawn[:-1])
    if not (whole and torch.equal(targets[order], case.targets) and torch.equal(inputs[order], case.inputs)):
        sys.exit(f"{contender.name}: an epoch of {case.shape} is not every sample once; nothing was written")


def measure(draw: Callable[[int], Iterable[Any]], epoch: int) -> float:
    """Return the CPU microseconds of a batch, over one epoch."""
    gc.collect()
    count = 0
    began_at = process_time()
    for _ in draw(epoch):
        count += 1
    return (process_time() - began_at) / count * 1e6


def step_us(case: Case, options: argparse.Namespace) -> float:
    """Return the CPU microseconds of a step of the MLP, written by hand, on batches of the case's size."""
    batches = make_batches(STEPS, options.seed)
    grown = [
        (inputs.repeat(case.batch_size // 32, 1), targets.repeat(case.batch_size // 32)) for inputs, targets in batches
    ]
    job = make_job(grown, options.seed)
    times = []
    for _ in range(3):
        began_at = process_time()
        for inputs, targets in grown:
            torch.nn.functional.cross_entropy(job.model(inputs), targets).backward()
            job.optimizer.step()
            job.optimizer.zero_grad()
        times.append((process_time() - began_at) / STEPS * 1e6)
    return median(times)


def as_markdown(case: Case, rounds: Sequence[dict[str, float]], step: float | None) -> str:
    """Return the table of one case."""
    title = f"### {case.shape}, batch {case.batch_size}"
    known = "" if step is None else f"\n\nA step of the MLP takes {step:.0f} µs."
    header = f"| {'contender':<32} | ratio | IQR | batches/s | µs/batch | of a step |\n|---|--:|--:|--:|--:|--:|"
    return "\n".join([f"{title}{known}\n", header, *(as_line(contender, rounds, step) for contender in CONTENDERS)])


def as_line(contender: Contender, rounds: Sequence[dict[str, float]], step: float | None) -> str:
    """Return one line of a table."""
    ratios = [times[contender.baseline] / times[contender.name] for times in rounds]
    lower, _, upper = quantiles(ratios, n=4, method="inclusive")
    taken = median(times[contender.name] for times in rounds)
    share = (
        "" if step is None else f"{taken / (taken + step):.0%}{' bottleneck' if taken > MUCH * (taken + step) else ''}"
    )
    cells = (
        f"{contender.name:<32}",
        f"{median(ratios):.2f}",
        f"{lower:.2f}-{upper:.2f}",
        f"{1e6 / taken:.0f}",
        f"{taken:.1f}",
        share,
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
