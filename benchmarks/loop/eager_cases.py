"""What an eager step costs over the hand-written loop where a step has more to do: bf16, dicts, many parameters.

Run by `python -m benchmarks.loop.eager_cases`. Layers are tiny, so that what Python does is most of a step, as it is of
a step on a GPU that waits for the host. Both sides train the same model on the same ready batches, and must end at the
same weights, bit for bit. Calls are those of functions within a step, counted once; time is CPU time. Sides take
turns in a new random order each round, and a ratio is to the hand-written loop of its own round.
"""

import argparse
import gc
import os
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median, quantiles
from time import process_time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from benchmarks.loop.overhead import silence
from benchmarks.provenance import provenance
from benchmarks.results import write_section
from treadle import Trainer
from treadle.optim.fused import direct_step

BAR = 1.02
NOTES = """\
Steps with tiny layers, batch 16, AdamW as each side makes it by itself, 1 torch thread, no callbacks,
`execution="eager"`. Ratio: CPU time of a step to that of the hand-written loop of the same round; "again" is that loop
once more, and how far it strays from 1 is what this run cannot resolve. Calls: of functions in a step, C's included."""


class Tower(nn.Module):
    """Many small layers; gives the loss itself, in a dict, where it is given labels, as models of transformers do.

    Args:
        layers: How many.
    """

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(layers))

    def forward(self, inputs: Tensor, labels: Tensor | None = None, attention_mask: Tensor | None = None) -> Any:
        """Return logits, or with labels the loss and these."""
        for layer in self.layers:
            inputs = functional.relu(layer(inputs))
        if labels is None:
            return inputs
        return {"loss": functional.cross_entropy(inputs, labels), "logits": inputs}


@dataclass(frozen=True)
class Case:
    """A line of the table.

    Args:
        name: What to call it.
        layers: How many the model has.
        bf16: Whether forward passes are in bf16.
        dicts: Whether batches are dicts with a mask, and the model gives the loss.
    """

    name: str
    layers: int = 6
    bf16: bool = False
    dicts: bool = False


CASES = (
    Case("6 layers, pairs, fp32"),
    Case("6 layers, pairs, bf16 autocast", bf16=True),
    Case("6 layers, dicts with a mask", dicts=True),
    Case("6 layers, dicts with a mask, bf16 autocast", bf16=True, dicts=True),
    Case("100 layers (200 parameters), pairs", layers=100),
    Case("100 layers, dicts with a mask, bf16 autocast", layers=100, bf16=True, dicts=True),
)


def make(case: Case, steps: int) -> tuple[nn.Module, torch.optim.Optimizer, DataLoader[Any]]:
    """Return a model, its optimizer and a loader of ready batches, always the same."""
    torch.manual_seed(0)
    model = Tower(case.layers)
    inputs, labels = torch.randn(steps, 16, 16), torch.randint(16, (steps, 16))
    mask = torch.ones(16, 16)
    batches: Any = [
        {"inputs": one, "labels": label, "attention_mask": mask} if case.dicts else (one, label)
        for one, label in zip(inputs, labels, strict=True)
    ]
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4), DataLoader(batches, batch_size=None)


def by_hand(case: Case, steps: int, marks: Callable[[], None]) -> nn.Module:
    """Train by a loop with nothing around the step."""
    model, optimizer, batches = make(case, steps)
    for batch in batches:
        marks()
        with torch.autocast("cpu", torch.bfloat16, enabled=case.bf16):
            loss = model(**batch)["loss"] if case.dicts else functional.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    marks()
    return model


class Marked(Trainer):
    """Notes when each update begins."""

    def update(self, phase: Any, window: list[Any]) -> None:
        """Make the update of a window."""
        self.marks()
        super().update(phase, window)


def by_treadle(case: Case, steps: int, marks: Callable[[], None]) -> nn.Module:
    """Train with a trainer."""
    model, optimizer, batches = make(case, steps)
    loss = None if case.dicts else functional.cross_entropy
    precision = "bf16" if case.bf16 else "fp32"
    trainer = Marked(model, loss, optimizer, callbacks=(), precision=precision, execution="eager")
    trainer.marks = marks  # type: ignore[attr-defined]
    with silence():
        trainer.train(batches, num_epochs=1)  # type: ignore[arg-type]
    marks()
    return model


SIDES = {"hand": by_hand, "again": by_hand, "treadle": by_treadle}
WARM = 20


class Clock:
    """Notes the CPU time of the process at the step after the first few, and at the end."""

    def __init__(self, steps: int) -> None:
        self.count, self.steps = 0, steps
        self.began = self.ended = 0.0

    def __call__(self) -> None:
        """Count a step."""
        if self.count == WARM:
            self.began = process_time()
        self.count += 1
        if self.count == self.steps + 1:
            self.ended = process_time()

    @property
    def microseconds(self) -> float:
        """Those of a step."""
        return (self.ended - self.began) / (self.steps - WARM) * 1e6


class Calls(Clock):
    """Counts calls of Python functions from a step to the one after the next ten."""

    calls = 0.0

    def __call__(self) -> None:
        """Begin or end to count where it is time."""
        self.count += 1
        if self.count == WARM:
            sys.setprofile(self._note)
        if self.count == WARM + 10:
            sys.setprofile(None)
            self.calls = (self._found - 2) / 10

    _found = 0

    def _note(self, frame: Any, event: str, argument: Any) -> None:
        self._found += event in ("call", "c_call")


def line_of(case: Case, options: argparse.Namespace) -> str:
    """Let all sides take their turns, and return a line of the table."""
    calls = {}
    for name in ("hand", "treadle"):
        counting = Calls(WARM + 20)
        SIDES[name](case, WARM + 20, counting)
        calls[name] = counting.calls
    order, rounds = random.Random(options.seed), []
    for number in range(options.rounds + 1):
        taken, ends = {}, {}
        for name in order.sample(list(SIDES), len(SIDES)):
            gc.collect()
            clock = Clock(options.steps)
            ends[name] = SIDES[name](case, options.steps, clock)
            taken[name] = clock.microseconds
        rounds += [taken] if number else []
        for one, other in zip(ends["hand"].parameters(), ends["treadle"].parameters(), strict=True):
            if not torch.equal(one, other):
                sys.exit(f"{case.name}: weights differ; nothing was written")
    ratios, again = ([taken[name] / taken["hand"] for taken in rounds] for name in ("treadle", "again"))
    low, _, high = quantiles(ratios, n=4, method="inclusive")
    times = [median(taken[name] for taken in rounds) for name in ("hand", "treadle")]
    verdict = "met" if median(ratios) <= BAR else "**missed**"
    return (
        f"| {case.name} | {times[0]:.0f} | {times[1]:.0f} | {times[1] - times[0]:.0f} | {median(ratios):.3f} "
        f"| {low:.3f}-{high:.3f} | {median(again):.3f} | {calls['hand']:.0f} | {calls['treadle']:.0f} "
        f"| {BAR} {verdict} |"
    )


OPTIMIZERS: dict[str, dict[str, Any]] = {
    "AdamW": {},
    "SGD": {"momentum": 0.9},
    **{name: {} for name in ("RMSprop", "Adagrad", "Adadelta", "NAdam", "RAdam", "Adamax")},
}


def line_of_optimizer(name: str, seed: int) -> str:
    """Step an optimizer by its own `step` and directly, in turn, and return a line of the table."""
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    for weight in model.parameters():
        weight.grad = torch.full_like(weight, 1e-3)
    optimizer: torch.optim.Optimizer = getattr(torch.optim, name)(model.parameters(), **OPTIMIZERS[name])
    ways: dict[str, Callable[[], object]] = {"own": optimizer.step, "direct": lambda: direct_step(optimizer)}
    order, rounds = random.Random(seed), []
    for _ in range(16):
        taken = {}
        for way in order.sample(list(ways), 2):
            began = process_time()
            for _ in range(200):
                ways[way]()
            taken[way] = (process_time() - began) / 200 * 1e6
        rounds.append(taken)
    own, direct = (median(one[way] for one in rounds[1:]) for way in ("own", "direct"))
    ratios = [one["direct"] / one["own"] for one in rounds[1:]]
    low, _, high = quantiles(ratios, n=4, method="inclusive")
    return f"| {name} | {own:.0f} | {direct:.0f} | {median(ratios):.2f} | {low:.2f}-{high:.2f} |"


def main() -> None:
    """Measure, print the table, write the section."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loop.eager_cases", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="timed rounds, after one that is discarded")
    parser.add_argument("--steps", type=int, default=600, help="steps of a run, of which the first are not timed")
    parser.add_argument("--seed", type=int, default=0, help="of the order of turns")
    parser.add_argument("--no-write", action="store_true", help="print, but leave RESULTS.md as it is")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = [
        "| step | hand, µs | Treadle, µs | over, µs | ratio | IQR | again | calls by hand | calls of Treadle | bar |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|---|",
    ]
    for case in CASES:
        lines.append(line_of(case, options))
        print(lines[-1], file=sys.stderr)
    facts = provenance(
        "loop.eager_cases",
        ("torch", "treadle"),
        rounds=f"{options.rounds}, of {options.steps} steps",
        load=f"{os.getloadavg()[2]:.1f} programs on the machine at a time, in the last quarter of an hour",
    )
    optimizers = [
        "| optimizer | its `step`, µs | direct, µs | ratio | IQR |",
        "|---|--:|--:|--:|--:|",
        *(line_of_optimizer(name, options.seed) for name in OPTIMIZERS),
    ]
    tables = ["\n".join(lines), "### Updates of an MLP 64-64-64-10 with nothing around them", "\n".join(optimizers)]
    section = "\n\n".join(["## Eager steps with more to do", facts, NOTES, *tables])
    print(section)
    if not options.no_write:
        write_section("eager-cases", section)


if __name__ == "__main__":
    main()
