"""Small models: what a step costs by hand, captured by hand, with Treadle, and with its peers."""

import gc
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from importlib import import_module

import torch

from benchmarks.execution.session import Findings
from benchmarks.execution.turns import DEVICE, FUSED_LOOP, HOST, RESIDENT, Turn, load_treadle, make_turns
from benchmarks.execution.work import CNN, MLP, SMOKE, Clock, Material, Work, fused_adamw, train_by_hand

ROUNDS = 32
OVERTIME = 0.2
PARITY_STEPS = 20
COMPILED_TOLERANCE = {"MLP": 1e-3, "CNN": 5e-2}
"""Two runs of the compiled CNN are as far apart as two eager ones in fp32: this only finds what is plainly wrong."""


def measure(findings: Findings) -> None:
    """Check that everybody does the same work, then time all of them in turn."""
    options = findings.options
    works = SMOKE if options.smoke else (MLP, CNN)
    for work in works:
        check_parity(findings, work)
    turns: dict[tuple[str, str], Turn] = {}
    for work in works:
        findings.say(f"{work.name}: preparing")
        made = make_turns(findings, Material(work, options.device, options.seed))
        turns |= {(work.name, turn.label): turn for turn in made}
    works_data: dict[str, dict[str, object]] = {work.name: {} for work in works}
    for (work_name, label), turn in turns.items():
        works_data[work_name][label] = turn.facts()
    findings.data |= {"turns": works_data, "rounds": {work.name: [] for work in works}}
    take_turns(findings, turns)


def take_turns(findings: Findings, turns: dict[tuple[str, str], Turn]) -> None:
    """Let everybody take turns in a new order each round, until all rounds are done or the time is up."""
    chance = random.Random(findings.options.seed)
    rounds = 2 if findings.options.smoke else ROUNDS
    for number in range(rounds + 1):
        late = number > 1 and not findings.has_time()
        if late and not findings.has_time(-OVERTIME * findings.budget_s):
            findings.say(f"time is up after {number - 1} of {rounds} rounds")
            return
        # When it is late only the loops go on that are compared by a few percent: they need the most rounds.
        due = [key for key, turn in turns.items() if turn.is_due(number) and not (late and turn.every > 1)]
        found: dict[str, dict[str, float]] = {}
        for work, label in chance.sample(due, len(due)):
            seconds = findings.attempt(f"{work}: {label}", partial(time_turn, turns[work, label], findings))
            if seconds is None:
                # What failed once is not tried again.
                del turns[work, label]
            else:
                found.setdefault(work, {})[label] = seconds / turns[work, label].steps * 1e6
        if number == 0:
            gc.collect()
            gc.freeze()
            findings.say("warm-up done")
            continue
        for work, times in found.items():
            findings.data["rounds"][work].append(times)
        findings.save()
        findings.say(f"round {number} of {rounds}: " + "; ".join(_said(work, times) for work, times in found.items()))
    findings.data["complete"] = True


def _said(work: str, times: dict[str, float]) -> str:
    names = [FUSED_LOOP, "treadle eager", "hand-captured graph", "treadle graph"]
    shown = [f"{name} {times[f'{name} | {DEVICE}']:.0f}" for name in names if f"{name} | {DEVICE}" in times]
    return f"{work}: {', '.join(shown)} µs"


def time_turn(turn: Turn, findings: Findings) -> float:
    """Return how long the last epoch of a turn took."""
    gc.collect()
    clock, precision = Clock(findings.options.device), torch.get_float32_matmul_precision()
    turn.run(clock)
    # Nobody may leave settings behind that make the others faster.
    torch.set_float32_matmul_precision(precision)
    return clock.seconds[-1]


# Parity -----------------------------------------------------------------------------------------------------------


def check_parity(findings: Findings, work: Work) -> None:
    """Train a few steps in every way, from the same weights, and compare where they end."""
    options = findings.options
    material = Material(replace(work, graph_steps=min(PARITY_STEPS, work.graph_steps)), options.device, options.seed)
    with repeatable():
        expected = _weights_by_hand(material)
    for name, inputs, compiled, weights_of in ways(material):
        # Compiled code for the one mode does not serve the other: it would all be compiled twice.
        with nullcontext() if compiled else repeatable():
            weights = findings.attempt(f"parity, {work.name}: {name} | {inputs}", weights_of)
        if weights is not None:
            allowed = COMPILED_TOLERANCE[work.name] if compiled else 0.0
            difference = (weights - expected).abs().max().item()
            findings.check(f"{work.name}: {name}, {inputs}, against the hand-written loop", difference, allowed)


Way = tuple[str, str, bool, Callable[[], torch.Tensor]]


def ways(material: Material) -> Iterator[Way]:
    """Yield what must come to the same end: name, inputs, whether it is compiled, and what returns the weights."""
    yield "treadle eager", DEVICE, False, partial(_weights_by_treadle, material, DEVICE, False, "eager")
    if material.device.type != "cuda":
        yield "treadle eager", RESIDENT, False, partial(_weights_by_treadle, material, RESIDENT, False, "eager")
        return
    for compiled in (False, True):
        inside = " + compile" if compiled else ""
        for inputs in (DEVICE, RESIDENT) if compiled else (DEVICE, RESIDENT, HOST):
            by_hand = partial(_weights_captured, material, inputs, compiled)
            yield f"hand-captured graph{inside}", inputs, compiled, by_hand
            treadle = partial(_weights_by_treadle, material, inputs, compiled, "graph")
            yield f"treadle graph{inside}", inputs, compiled, treadle


def _weights_by_hand(material: Material) -> torch.Tensor:
    job = material.job(material.batches, fused_adamw)
    train_by_hand(job, Clock(material.device))
    return job.weights()


def _weights_captured(material: Material, inputs: str, compiled: bool) -> torch.Tensor:
    graphs = import_module("benchmarks.execution.graphs")
    if inputs == RESIDENT:
        feed = graphs.ResidentFeed(material, compiled, shuffled=False)
    else:
        feed = (graphs.HostFeed if inputs == HOST else graphs.CopyFeed)(material, compiled)
    graphs.train_captured(feed, Clock(material.device), epochs=2)
    weights: torch.Tensor = feed.job.weights()
    return weights


def _weights_by_treadle(material: Material, inputs: str, compiled: bool, execution: str) -> torch.Tensor:
    clock = Clock(material.device)
    job = material.job(material.host_batches if inputs == HOST else material.batches, fused_adamw)
    options = {"execution": execution, "compiled": compiled}
    if inputs == RESIDENT:
        load_treadle().train_resident(job, clock, material, shuffled=False, **options)
    else:
        load_treadle().train(job, clock, **options)
    return job.weights()


@contextmanager
def repeatable() -> Iterator[None]:
    """Have torch choose kernels that give the same bits each time, where it has them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(False)
