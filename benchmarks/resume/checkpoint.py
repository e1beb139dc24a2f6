"""How long a checkpoint holds up the loop, and how long a run takes to go on; run by `make bench-checkpoint`.

Saving: one process holds a model and its AdamW state. In each round `torch.save`, a synchronous and an asynchronous
save of the same state take turns in random order. Resuming: a run over lazy map-style data is placed at step 10 and at
step 1,000,000 of an epoch; each is resumed several times, in turn, up to the end of its first update.
"""

import argparse
import gc
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter, thread_time
from typing import Any

import torch
from torch import nn

from benchmarks.provenance import provenance
from benchmarks.results import write_section
from benchmarks.resume.deep_runs import RESUMED, Place, measure_resume, prepare_run
from treadle.checkpoint import CheckpointStore, Policy, Saver

TENSORS = 80
SAVING_BAR = 0.20
RESUMING_BAR = 1.2
NOTES = f"""\
State: parameters and two moments, float32, in {TENSORS} tensors each. "Blocked" is the time until the loop may go on:
all of `torch.save(state, file)`, which forces nothing out to the disk; all of a synchronous save, which writes, reads
back for its checksum, forces out and renames; the copy into host buffers for an asynchronous one. Its first save also
allocates these buffers. Ratio: to `torch.save` of the same round; bar: {SAVING_BAR:.2f} for the asynchronous save.
CPU: what the blocked thread itself used, and its ratio; it is all that a save costs where nobody else uses the
processor. Torch copies with as many threads as it has: one is the slowest case.

Resuming: from the call of `train(resume="auto")` to the end of the first update, in a process that has torch imported.
The permutation of the epoch is drawn anew in each, whatever the step. Ratio: step 1,000,000 to step 10 of the same
round; bar: {RESUMING_BAR}."""

Way = Callable[[], None]


@dataclass(frozen=True)
class Figures:
    """The median of some times or ratios, with its quartiles."""

    middle: float
    lower: float
    upper: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Figures":
        """Summarise at least two values."""
        lower, _, upper = quantiles(values, n=4, method="inclusive")
        return cls(median(values), lower, upper)


@dataclass(frozen=True)
class Seconds:
    """How long a save blocked the loop, and how much of that its thread was computing."""

    blocked: float
    used: float

    @classmethod
    def of(cls, way: Way) -> "Seconds":
        """Measure one save."""
        began, used = perf_counter(), thread_time()
        way()
        return cls(perf_counter() - began, thread_time() - used)


def main() -> None:
    """Measure, print the tables, write the section."""
    options = parse_options()
    torch.set_num_threads(options.threads)
    tables = [*(saving_table(size, options) for size in options.millions), resuming_table(options)]
    section = as_markdown([table for table in tables if table], options)
    print(section)
    if options.no_write:
        print("RESULTS.md left as it is (--no-write).")
    else:
        write_section("checkpoint", section)


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.resume.checkpoint", description=__doc__)
    parser.add_argument("--millions", type=int, nargs="*", default=[10, 300], help="parameters of the models saved")
    parser.add_argument("--rounds", type=int, default=9, help="timed rounds, after one that is reported by itself")
    parser.add_argument("--resumes", type=int, default=25, help="timed rounds of resuming, after one; 0 leaves it out")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    parser.add_argument("--seed", type=int, default=0, help="of the order of turns")
    parser.add_argument("--folder", type=Path, help="where to write; by default where temporary files go")
    parser.add_argument("--no-write", action="store_true", help="print, but leave RESULTS.md as it is")
    options = parser.parse_args()
    if options.rounds < 2 or options.resumes == 1 or options.resumes < 0:
        parser.error(f"--rounds {options.rounds} --resumes {options.resumes}: needs 2 rounds, and 0 or 2 resumes")
    return options


# Saving -----------------------------------------------------------------------------------------------------


def make_state(millions: int) -> dict[str, Any]:
    """Return the state of a model of so many million parameters and of its AdamW."""
    model = nn.ParameterList(torch.randn(millions * 1_000_000 // TENSORS) for _ in range(TENSORS))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for parameter in model.parameters():
        moments = {name: torch.randn_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
        optimizer.state[parameter] = {"step": torch.tensor(1.0), **moments}
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


class Ways:
    """The ways to save one state, each in files of its own that replace those of the round before."""

    def __init__(self, state: dict[str, Any], folder: Path) -> None:
        self._state = state
        self._folder = folder
        self._policy = Policy(keep_last=1)
        # One saver for both ways, so that they share their buffers.
        self._saver = Saver(CheckpointStore(folder / "treadle", self._policy), "benchmark", lambda: None)
        self._step = 0

    def torch_save(self) -> None:
        """Save with torch alone."""
        torch.save(self._state, self._folder / "torch.pt")

    def synchronous(self) -> None:
        """Save, and go on when it is on disk."""
        self._save(asynchronous=False)

    def asynchronous(self) -> None:
        """Save, and go on when a copy is made."""
        self._save(asynchronous=True)

    def finish(self) -> None:
        """Wait for what is still being written."""
        self._saver.wait()

    def _save(self, *, asynchronous: bool) -> None:
        self._step += 1
        self._saver.store.policy = replace(self._policy, asynchronous=asynchronous)
        self._saver.save(self._step, self._state, {})


def saving_table(millions: int, options: argparse.Namespace) -> str:
    """Measure the ways to save a state of this size and return the table."""
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        rounds = measure_saving(Ways(make_state(millions), Path(folder)), options)
    gc.collect()
    first, timed = rounds[0], rounds[1:]
    lines = [f"### {millions} M parameters ({millions * 0.012:.2f} GB)", ""]
    lines += ["| save | blocked, ms | IQR | ratio | IQR | CPU, ms | ratio | first, ms |"]
    lines += ["|---|--:|--:|--:|--:|--:|--:|--:|"]
    for name in ("torch_save", "synchronous", "asynchronous"):
        times = Figures.of([each[name].blocked * 1e3 for each in timed])
        ratios = Figures.of([each[name].blocked / each["torch_save"].blocked for each in timed])
        used = median(each[name].used * 1e3 for each in timed)
        used_ratio = median(each[name].used / each["torch_save"].used for each in timed)
        lines.append(
            f"| {name.replace('_', '.'):<12} | {times.middle:.1f} | {times.lower:.1f}-{times.upper:.1f} "
            f"| {ratios.middle:.2f} | {ratios.lower:.2f}-{ratios.upper:.2f} "
            f"| {used:.1f} | {used_ratio:.2f} | {first[name].blocked * 1e3:.0f} |"
        )
        if name == "asynchronous":
            verdict = "met" if ratios.middle < SAVING_BAR else "MISSED"
            lines += ["", f"Bar of {SAVING_BAR:.2f}: {verdict}."]
    return "\n".join(lines)


def measure_saving(ways: Ways, options: argparse.Namespace) -> list[dict[str, Seconds]]:
    """Let every way take its turn in each round; return the seconds that each took, the first round too."""
    chance = random.Random(options.seed)
    turns: dict[str, Way] = {
        "torch_save": ways.torch_save,
        "synchronous": ways.synchronous,
        "asynchronous": ways.asynchronous,
    }
    rounds = []
    for number in range(options.rounds + 1):
        seconds = {}
        # In the first round the asynchronous save goes first: it is the one whose buffers are new.
        names = sorted(turns) if number == 0 else chance.sample(sorted(turns), len(turns))
        for name in names:
            seconds[name] = Seconds.of(turns[name])
            ways.finish()
        rounds.append(seconds)
        shown = ", ".join(f"{name} {seconds[name].blocked:.3f} s" for name in turns)
        print(f"round {number}: {shown}", file=sys.stderr)
    return rounds


# Resuming ---------------------------------------------------------------------------------------------------


def resuming_table(options: argparse.Namespace) -> str:
    """Measure how long runs at different steps take to go on and return the table; empty if not asked for."""
    if not options.resumes:
        return ""
    lines = ["### Resuming", "", "| data | step 10, ms | step 1,000,000, ms | ratio | IQR |", "|---|--:|--:|--:|--:|"]
    worst = 0.0
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for place in RESUMED:
            early, late = measure_resuming(Path(folder) / place.name, place, options)
            ratios = Figures.of([after / before for before, after in zip(early, late, strict=True)])
            worst = max(worst, ratios.middle)
            lines.append(
                f"| {place.name} | {median(early) * 1e3:.0f} | {median(late) * 1e3:.0f} "
                f"| {ratios.middle:.2f} | {ratios.lower:.2f}-{ratios.upper:.2f} |"
            )
    verdict = "met" if worst < RESUMING_BAR else "MISSED"
    return "\n".join([*lines, "", f"Bar of {RESUMING_BAR}: {verdict}."])


def measure_resuming(folder: Path, place: Place, options: argparse.Namespace) -> tuple[list[float], list[float]]:
    """Resume at both steps in turn; return the seconds that each took, without the first round."""
    steps = (10, 1_000_000)
    for step in steps:
        prepare_run(folder / str(step), place, step)
    seconds: dict[int, list[float]] = {step: [] for step in steps}
    chance = random.Random(options.seed)
    for _ in range(options.resumes + 1):
        for step in chance.sample(steps, len(steps)):
            gc.collect()
            seconds[step].append(measure_resume(folder / str(step), place, step))
    print(f"resuming, {place.name}: {seconds}", file=sys.stderr)
    return seconds[10][1:], seconds[1_000_000][1:]


def as_markdown(tables: Sequence[str], options: argparse.Namespace) -> str:
    """Return the section: where the figures come from, how they were taken, the tables."""
    rounds = f"{options.rounds} of saving, {options.resumes} of resuming, after one each"
    facts = provenance("checkpoint", ("treadle", "torch", "safetensors"), rounds=rounds, threads=options.threads)
    return "\n\n".join(["## Checkpoints", facts, NOTES, *tables])


if __name__ == "__main__":
    main()
