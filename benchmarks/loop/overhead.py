"""What a trainer costs per step over a hand-written loop, all contenders in one run.

Run by `make bench-overhead`. Every contender trains the same MLP from the same weights on the same ready
batches, and must end at the hand-written loop's weights. The clock is the CPU time of the whole process, threads
included, from the first batch fetched to the return of the training call; what comes before is reported as the
start. Contenders take turns in a new random order each round, and a ratio is to the hand-written loop of its own
round.
"""

import argparse
import gc
import os
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from statistics import median, quantiles
from time import process_time

import torch

from benchmarks.contenders import BASELINE, CONTENDERS, Contender, Train
from benchmarks.docs.readme import columns_of, fill, section_of
from benchmarks.job import Batch, make_batches, make_job
from benchmarks.provenance import provenance
from benchmarks.results import RESULTS, write_section

TOLERANCE = 1e-5
README_COLUMNS = ("contender", "ratio", "IQR", "over, µs")
# The two bars are named besides the contenders, for they are a good part of what some of these cost.
PACKAGES = tuple(dict.fromkeys([*(contender.package for contender in CONTENDERS), "numpy", "rich", "tqdm"]))
NOTES = """\
Work: MLP 64-64-64-10, batch 32, cross-entropy, AdamW with default settings, 1 torch thread. Everybody reads the
same `DataLoader(ready_batches, batch_size=None)`, the hand-written loop too, with two exceptions:
pytorch-accelerated refuses it and builds one with `batch_size=1` and a collate function that unpacks, and the
transformers Trainer gets its batches as dicts, which is cheaper for it than pairs.

Time: CPU time of the process, threads included, of the whole call that builds the trainer and trains: one to ten
milliseconds of set-up are in it. Ratio: to the hand-written loop of the same round. Weights: the largest
difference from the hand-written loop's final weights in any round. The loop measured "again" is the same code; how
far its ratio strays from 1 is what this run cannot resolve.

Bars and logs are on where they are on by default, but stdout and stderr are not a terminal (they go to the null
device). Lightning's bar is its Rich bar, and its module calls no `self.log`."""


@dataclass(frozen=True)
class Run:
    """One contender's turn: CPU microseconds per step, final weights."""

    step_us: float
    weights: torch.Tensor


@dataclass(frozen=True)
class Row:
    """One contender's line of the table, over all rounds."""

    name: str
    ratio: float
    ratio_quartiles: tuple[float, float]
    step_us: float
    over_us: float
    weight_difference: float


Round = dict[Contender, Run]


def main() -> None:
    """Measure, print the table, write the section."""
    options = parse_options()
    if options.readme:
        fill_readme()
        return
    prepare_process()
    loaded, missing = load_contenders(options.only)
    rounds = measure_rounds(loaded, options)
    rows = [summarise(contender, rounds) for contender in loaded]
    section = as_markdown(rows, missing, options)
    print(section)
    print(f"\nParity: in each round all ended within {TOLERANCE} of the hand-written loop's weights.")
    if options.only or options.no_write:
        print("RESULTS.md left as it is (--only, --no-write).")
    else:
        write_section("overhead", section)
        fill_readme()


def fill_readme() -> None:
    """Put the figures that are in RESULTS.md into README.md."""
    fill("overhead", columns_of(section_of("overhead", RESULTS), README_COLUMNS))


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loop.overhead", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="timed rounds, after one that is discarded")
    parser.add_argument("--steps", type=int, default=2000, help="steps of one timed run")
    parser.add_argument("--seed", type=int, default=0, help="of weights, batches and the order of turns")
    parser.add_argument("--only", metavar="TEXT", help="measure only names with TEXT in them; no file")
    parser.add_argument("--no-write", action="store_true", help="print, but leave RESULTS.md as it is")
    parser.add_argument("--readme", action="store_true", help="measure nothing; copy RESULTS.md's table into README.md")
    options = parser.parse_args()
    if options.rounds < 2 or options.steps < 1:
        parser.error(f"--rounds {options.rounds} --steps {options.steps}: needs 2 rounds and 1 step at least")
    return options


def prepare_process() -> None:
    """Hold everybody to one thread of the CPU, also on a machine with an accelerator."""
    os.environ.update(CUDA_VISIBLE_DEVICES="", ACCELERATE_USE_CPU="true")
    torch.set_num_threads(1)


def load_contenders(only: str | None) -> tuple[dict[Contender, Train], dict[str, str]]:
    """Import the contenders; return those that import, and the reason why each of the others does not."""
    loaded: dict[Contender, Train] = {}
    missing: dict[str, str] = {}
    for contender in CONTENDERS:
        if only and only.lower() not in contender.name.lower() and contender is not BASELINE:
            continue
        try:
            with silence():
                loaded[contender] = contender.load()
        except ImportError as error:
            # The message goes to the terminal only: it may name a path of this machine.
            missing[contender.name] = _reason(error)
            print(f"missing: {contender.name}: {error}", file=sys.stderr)
    return loaded, missing


def _reason(error: ImportError) -> str:
    return f"{error.name} not installed" if isinstance(error, ModuleNotFoundError) else "does not import"


def measure_rounds(loaded: dict[Contender, Train], options: argparse.Namespace) -> list[Round]:
    """Let all contenders take their turns, and return the rounds that count."""
    batches = make_batches(options.steps, options.seed)
    order = random.Random(options.seed)
    rounds = []
    for number in range(options.rounds + 1):
        turns = order.sample(list(loaded), len(loaded))
        finished = {contender: measure(loaded[contender], batches, options.seed) for contender in turns}
        require_parity(finished)
        name = f"round {number} of {options.rounds}" if number else "warm-up"
        print(f"{name}: hand-written loop {finished[BASELINE].step_us:.0f} µs/step", file=sys.stderr)
        if number:
            rounds.append(finished)
        else:
            # Modules that some peer imported would be walked by the collections of every other contender.
            gc.collect()
            gc.freeze()
    return rounds


def require_parity(finished: Round) -> None:
    """End the benchmark if a contender did other work than the hand-written loop: its time would mean nothing."""
    for contender, run in finished.items():
        difference = weight_difference(run, finished[BASELINE])
        if not difference <= TOLERANCE:
            sys.exit(
                f"{contender.name}: its weights ended {difference:.1e} away from the hand-written loop's "
                f"(allowed: {TOLERANCE}); nothing was written"
            )


def weight_difference(run: Run, baseline: Run) -> float:
    """Return the largest difference of any weight."""
    return (run.weights - baseline.weights).abs().max().item()


def measure(train: Train, batches: Sequence[Batch], seed: int) -> Run:
    """Time one contender on a fresh job, in an empty folder, with the garbage of others collected before."""
    job = make_job(batches, seed)
    gc.collect()
    with tempfile.TemporaryDirectory() as folder, chdir(folder), silence():
        began_at = process_time()
        train(job)
        ended_at = process_time()
    return Run((ended_at - began_at) / len(batches) * 1e6, job.weights())


@contextmanager
def silence() -> Iterator[None]:
    """Send stdout and stderr to the null device, below Python: consoles and log handlers keep old streams."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for original, target in zip(saved, (1, 2), strict=True):
            os.dup2(original, target)
        for descriptor in (*saved, null):
            os.close(descriptor)


def summarise(contender: Contender, rounds: Sequence[Round]) -> Row:
    """Reduce a contender's rounds to medians, the quartiles of its ratio, and its worst weight difference."""
    pairs = [(finished[contender], finished[BASELINE]) for finished in rounds]
    ratios = [run.step_us / baseline.step_us for run, baseline in pairs]
    lower, _, upper = quantiles(ratios, n=4, method="inclusive")
    return Row(
        name=contender.name,
        ratio=median(ratios),
        ratio_quartiles=(lower, upper),
        step_us=median(run.step_us for run, _ in pairs),
        over_us=median(run.step_us - baseline.step_us for run, baseline in pairs),
        weight_difference=max(weight_difference(run, baseline) for run, baseline in pairs),
    )


def as_markdown(rows: Sequence[Row], missing: dict[str, str], options: argparse.Namespace) -> str:
    """Return the section: where the figures come from, how they were taken, the table, who is missing."""
    absent = "; ".join(f"{name} ({reason})" for name, reason in missing.items()) or "none"
    amount = f"{options.rounds} of {options.steps} steps, after one that is discarded"
    facts = provenance("overhead", PACKAGES, rounds=amount, missing=absent)
    names = "| contender | ratio | IQR | µs/step | over, µs | weights |"
    header = f"{names}\n|---|--:|--:|--:|--:|--:|"
    table = "\n".join([header, *(as_line(row) for row in rows)])
    return f"## Overhead per step\n\n{facts}\n\n{NOTES}\n\n{table}"


def as_line(row: Row) -> str:
    """Return one line of the Markdown table, padded so that it also reads well in a terminal."""
    lower, upper = row.ratio_quartiles
    cells = (
        f"{row.name:<29}",
        f"{row.ratio:.3f}",
        f"{lower:.3f}-{upper:.3f}",
        f"{row.step_us:5.0f}",
        f"{row.over_us:+5.0f}",
        f"{row.weight_difference:.0e}",
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
