"""What two shortcuts of a step on a CPU save: each with the shortcut and without it, in turns.

`python -m benchmarks.loop.speedups`. Each turn is a process of its own, in which the shortcut is there or has been
replaced by what torch and the C library do themselves; the order is drawn anew in each round. The clock is the CPU time
of the process from the first batch of the second epoch to its end.
"""

import argparse
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from benchmarks.execution.work import CLASSES, fused_adamw, make_cnn, make_mlp
from benchmarks.provenance import provenance
from benchmarks.results import write_section

ROOT = Path(__file__).parents[2]
NOTES = """\
Work: the MLP 64-64-64-10 in batches of 32 and the CNN of `benchmarks.execution.work` in batches of 32, fused AdamW, one
torch thread, `Trainer` without callbacks. Times are CPU time of the process per step, faults its page faults per step.
Ratio: without the shortcut to with it, of the same round."""
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "MLP": (make_mlp, (64,), 1500),
    "CNN": (make_cnn, (1, 28, 28), 40),
}
"""The model, the shape of a sample and the steps of an epoch."""


def without(shortcut: str) -> None:
    """Replace a shortcut by what is there without it."""
    from treadle import run
    from treadle.loop import update

    replacements: dict[str, tuple[Any, Callable[..., Any]]] = {
        "direct_step": (update, lambda optimizer: optimizer.step()),
        "keep_host_memory": (run, lambda: None),
    }
    module, replacement = replacements[shortcut]
    setattr(module, shortcut, replacement)


def turn(case: str) -> None:
    """Train two epochs here, and print the microseconds and the page faults of a step of the second."""
    from treadle import Trainer, TrainerCallback

    torch.set_num_threads(1)
    torch.manual_seed(0)
    make, shape, steps = CASES[case]
    marks: list[tuple[float, int]] = []

    class Timed(TrainerCallback):
        def on_train_epoch_start(self, trainer: Any, **kwargs: Any) -> None:
            self._mark()

        def on_train_epoch_end(self, trainer: Any, **kwargs: Any) -> None:
            self._mark()

        def _mark(self) -> None:
            marks.append((time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt))

    model = make()
    data = TensorDataset(torch.randn(32 * steps, *shape), torch.randint(CLASSES, (32 * steps,)))
    trainer = Trainer(model, nn.CrossEntropyLoss(), fused_adamw(model), (Timed,))
    trainer.train(data, num_epochs=2, per_device_batch_size=32)
    (began, faults), (ended, more) = marks[-2:]
    print(1e6 * (ended - began) / steps, (more - faults) / steps)


def measured(case: str, shortcut: str) -> tuple[float, float]:
    """Return what a turn in a process of its own prints; with an empty `shortcut` none is replaced."""
    command = [sys.executable, "-m", "benchmarks.loop.speedups", "--turn", case, "--without", shortcut]
    printed = subprocess.run(command, check=True, cwd=ROOT, capture_output=True, text=True).stdout
    microseconds, faults = printed.splitlines()[-1].split()
    return float(microseconds), float(faults)


def main() -> None:
    """Let all take their turns, print the table, write the section."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loop.speedups", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--turn", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--without", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.turn:
        if options.without:
            without(options.without)
        turn(options.turn)
        return
    lines = ["| work | without | with, µs | without, µs | without/with | IQR | faults with | faults without |"]
    lines.append("|---|---|--:|--:|--:|--:|--:|--:|")
    for case in CASES:
        rounds: list[dict[str, tuple[float, float]]] = []
        for _ in range(options.rounds):
            order = random.sample(["", "direct_step", "keep_host_memory"], 3)
            rounds.append({shortcut: measured(case, shortcut) for shortcut in order})
        for shortcut in ("direct_step", "keep_host_memory"):
            ratios = [one[shortcut][0] / one[""][0] for one in rounds]
            low, _, high = quantiles(ratios, n=4)
            kept, gone = ([median(one[key][place] for one in rounds) for place in (0, 1)] for key in ("", shortcut))
            lines.append(
                f"| {case} | `{shortcut}` | {kept[0]:.0f} | {gone[0]:.0f} | {median(ratios):.3f} | "
                f"{low:.3f}-{high:.3f} | {kept[1]:.1f} | {gone[1]:.1f} |"
            )
    facts = provenance("loop.speedups", ["torch", "treadle"], rounds=str(options.rounds))
    section = "\n".join([f"## Shortcuts of a step on a CPU\n\n{facts}\n\n{NOTES}\n", *lines])
    print(section)
    write_section("speedups", section)


if __name__ == "__main__":
    main()
