"""What a step costs before a change and after it: two checkouts of Treadle, in turns.

`git worktree add ../before COMMIT`, then `python -m benchmarks.loop.before_after ../before`. Each turn is a process
of its own that imports Treadle from one of the two checkouts and trains the MLP of `benchmarks.loop.overhead` there,
by every door; the order of the two is drawn anew in each round. The clock is the CPU time of the process from the
first batch to the end, without what comes before; with two processes, which talk by gloo, it is the time that passes.
A ratio is between the two turns of one round.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from torch import nn

from benchmarks.job import LOSS_FUNC, Job, make_batches, make_job
from benchmarks.provenance import provenance
from benchmarks.results import write_section

ROOT = Path(__file__).parents[2]
NOTES = """\
Work: MLP 64-64-64-10, batch 32, AdamW, 1 torch thread; the trainer with its default callbacks and with none, a
trainer of the engine with a config's defaults, and the trainer with two processes on gloo (64 samples an update).
Times are CPU time of the process per step, from the first batch on; with two processes what a step takes on the wall.
Ratio: after to before, of the same round."""


def by_hand(job: Job, clock: "Clock") -> None:
    """Train as one writes it by hand."""
    clock.begin()
    for inputs, targets in job.loader:
        loss = LOSS_FUNC(job.model(inputs), targets)
        job.optimizer.zero_grad()
        loss.backward()
        job.optimizer.step()
    clock.end()


def by_trainer(job: Job, clock: "Clock", **options: Any) -> None:
    """Train by the core's trainer."""
    from treadle import Trainer, TrainerCallback

    class Timed(TrainerCallback):
        def on_train_epoch_start(self, trainer: Any, **kwargs: Any) -> None:
            clock.begin()

        def on_train_epoch_end(self, trainer: Any, **kwargs: Any) -> None:
            clock.end()

    from treadle import DEFAULT_CALLBACKS

    callbacks = (*options.pop("callbacks", DEFAULT_CALLBACKS), Timed)
    Trainer(job.model, LOSS_FUNC, job.optimizer, callbacks, **options).train(job.loader, num_epochs=1)


class Losses(nn.Module):
    """A model as the engine has them: it returns its losses."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss of a batch."""
        return {"loss": LOSS_FUNC(self.inner(inputs), targets)}


def by_engine(job: Job, clock: "Clock") -> None:
    """Train by the engine's own trainer."""
    from treadle.engine import EagerTrainer, HookBase

    class Timed(HookBase):
        def before_train(self) -> None:
            clock.begin()

        def after_train(self) -> None:
            clock.end()

    trainer = EagerTrainer(Losses(job.model), job.loader, job.optimizer)
    trainer.register_hooks([Timed()])
    trainer.train(0, len(job.batches))


class Clock:
    """Measures CPU time, or the time that passes.

    Args:
        read: What tells the time.
    """

    def __init__(self, read: Callable[[], float]) -> None:
        self._read, self.seconds = read, 0.0

    def begin(self) -> None:
        """Begin."""
        self.seconds -= self._read()

    def end(self) -> None:
        """End."""
        self.seconds += self._read()


CASES: dict[str, Callable[[Job, Clock], None]] = {
    "hand-written loop": by_hand,
    "trainer, default callbacks": by_trainer,
    "trainer, callbacks=()": lambda job, clock: by_trainer(job, clock, callbacks=()),
    "engine": by_engine,
    "trainer, two processes": by_trainer,
}


def turn(case: str, steps: int, out: Path) -> None:
    """Train once, here, and write how many microseconds a step took."""
    torch.set_num_threads(1)
    alone = "RANK" not in os.environ
    clock = Clock(time.process_time if alone else time.perf_counter)
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        sys.stdout = nowhere
        CASES[case](make_job(make_batches(50, 1), 1), Clock(time.process_time))
        CASES[case](make_job(make_batches(steps, 0), 0), clock)
        sys.stdout = sys.__stdout__
    if os.environ.get("RANK", "0") == "0":
        out.write_text(json.dumps(1e6 * clock.seconds / steps), encoding="utf-8")


def measured(case: str, checkout: Path, steps: int) -> float:
    """Return the microseconds of a step in a process of its own, with Treadle from a checkout."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"] if "two" in case else []
        command = [sys.executable, *launcher, str(Path(__file__).resolve()), "--turn", case, str(steps), str(out)]
        # The benchmark is this one's for both; only the package differs.
        places = os.pathsep.join((str(checkout), folder))
        (Path(folder) / "benchmarks").symlink_to(ROOT / "benchmarks")
        environment = {**os.environ, "PYTHONPATH": places, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        # A checkout of before may abort when two processes end, now and then; the time is written by then.
        status = subprocess.run(command, env=environment, cwd=folder, stdout=subprocess.DEVNULL).returncode
        if not out.exists():
            raise SystemExit(f"{case} with {checkout} ended with status {status}, without a time")
        return float(json.loads(out.read_text(encoding="utf-8")))


def main() -> None:
    """Let both take their turns, print the table, write the section."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loop.before_after", description=__doc__)
    parser.add_argument("before", type=Path, help="a checkout of the commit to compare with")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--only", default="", help="measure only cases with this text in them; no file")
    options = parser.parse_args()
    commits = [
        subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=place, check=True, capture_output=True, text=True
        ).stdout.strip()
        for place in (options.before, ROOT)
    ]
    found: dict[str, list[tuple[float, float, float]]] = {}
    for _ in range(options.rounds):
        hand = measured("hand-written loop", ROOT, options.steps)
        for case in CASES:
            if options.only in case and case != "hand-written loop":
                places = [options.before.resolve(), ROOT]
                order = random.sample([0, 1], 2)
                times = {place: measured(case, places[place], options.steps) for place in order}
                found.setdefault(case, []).append((times[0], times[1], hand))
    lines = ["| case | before, µs | after, µs | after/before | IQR | after/hand-written |", "|---|--:|--:|--:|--:|--:|"]
    for case, rows in found.items():
        ratios = [after / before for before, after, _ in rows]
        low, _, high = quantiles(ratios, n=4)
        over = "" if "two" in case else f"{median(after / hand for _, after, hand in rows):.3f}"
        before, after = (median(row[place] for row in rows) for place in (0, 1))
        lines.append(f"| {case} | {before:.0f} | {after:.0f} | {median(ratios):.3f} | {low:.3f}-{high:.3f} | {over} |")
    facts = {"before": commits[0], "after": commits[1], "rounds": f"{options.rounds} of {options.steps} steps"}
    section = (
        f"## A step before and after\n\n{provenance('before_after', ['torch', 'treadle'], **facts)}\n\n{NOTES}\n\n"
    )
    section += "\n".join(lines)
    print(section)
    if not options.only:
        write_section("before-after", section)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--turn"]:
        turn(sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
    else:
        main()
