"""The CPU, one thread: what compiling gains there, and how fast tensor data sets are read."""

import gc
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from time import process_time
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.execution.session import Findings
from benchmarks.execution.work import AVERAGE_CNN, CNN, MLP, SMOKE, Clock, Material, Work, default_adamw, train_by_hand

ROUNDS = 9
COMPILE_BAR, READING_BAR = 1.3, 3.0
STEPS = {"MLP": 400, "CNN": 15, "CNN, average pooling": 15}
SAMPLES = 60_000
READINGS = {"MLP": 32, "CNN": 128}


def measure(findings: Findings) -> None:
    """Time eager against compiled steps, then reading."""
    smoke = findings.options.smoke
    torch.set_num_threads(1)
    findings.data |= {"compile_bar": COMPILE_BAR, "reading_bar": READING_BAR, "steps": {}, "reading": {}}
    for work in SMOKE if smoke else (CNN, MLP):
        measure_reading(findings, work)
    for work in SMOKE if smoke else (CNN, MLP, AVERAGE_CNN):
        measure_steps(findings, work)
    findings.data["complete"] = True


def measure_steps(findings: Findings, work: Work) -> None:
    """Let all ways of training take turns; what is compiled is compiled once."""
    options = findings.options
    steps = work.eager_steps if options.smoke else STEPS[work.name]
    material = Material(replace(work, graph_steps=steps), torch.device("cpu"), options.seed)
    ways = step_ways(material, options.smoke)
    rounds: list[dict[str, float]] = []
    findings.data["steps"][work.name] = rounds
    chance = random.Random(options.seed)
    for number in range((1 if options.smoke else ROUNDS) + 1):
        if number > 3 and not findings.has_time():
            return
        found: dict[str, float] = {}
        for name in chance.sample(list(ways), len(ways)):
            clock = Clock(material.device)
            gc.collect()
            if findings.attempt(f"{work.name}: {name}", partial(_done, ways[name], clock)):
                found[name] = clock.seconds[-1] / steps * 1e6
        if number:
            rounds.append(found)
            findings.save()
        findings.say(f"{work.name}: " + ", ".join(f"{name} {found[name]:.0f} µs" for name in sorted(found)))


def _done(work: Callable[[Clock], None], clock: Clock) -> bool:
    work(clock)
    return True


def step_ways(material: Material, smoke: bool) -> dict[str, Callable[[Clock], None]]:
    """Return the ways to train; each gets a fresh job, and the second of its two epochs counts."""

    def by_hand(clock: Clock, compiled: bool) -> None:
        job = material.job(material.batches, default_adamw)
        if compiled:
            job = replace(job, model=torch.compile(job.model, dynamic=False))  # type: ignore[arg-type]
        train_by_hand(job, clock)

    def by_treadle(clock: Clock, execution: str) -> None:
        treadle = import_module("benchmarks.contenders.treadle_execution")
        treadle.train(material.job(material.batches, default_adamw), clock, execution=execution)

    return {
        "hand-written loop": partial(by_hand, compiled=False),
        "hand-written loop, compiled": partial(by_hand, compiled=not smoke),
        "treadle eager": partial(by_treadle, execution="eager"),
        "treadle compile": partial(by_treadle, execution="eager" if smoke else "compile"),
    }


def measure_reading(findings: Findings, work: Work) -> None:
    """Time an epoch of shuffled batches by torch's loader and by Treadle, in turn."""
    smoke = findings.options.smoke
    count, size = (64, 4) if smoke else (SAMPLES, READINGS[work.name])
    data = TensorDataset(torch.randn(count, *work.shape), torch.randint(10, (count,)))
    ways: dict[str, Callable[[int], Any]] = {
        "DataLoader(TensorDataset)": lambda epoch: DataLoader(data, batch_size=size, shuffle=True),
        "treadle": lambda epoch: import_module("benchmarks.contenders.treadle_execution").stream_batches(
            data, size, epoch
        ),
    }
    rounds: list[dict[str, float]] = []
    findings.data["reading"][work.name] = rounds
    for number in range(2 if smoke else 6):
        found = {}
        for name, batches in ways.items():
            rate = findings.attempt(f"reading, {name}", partial(read_epoch, batches, number))
            if rate is not None:
                found[name] = rate
        if number:
            rounds.append(found)
        findings.say(f"reading {work.name}: " + ", ".join(f"{name} {rate:.0f}/s" for name, rate in found.items()))
        findings.save()


def read_epoch(batches: Callable[[int], Any], epoch: int) -> float:
    """Return the batches per second of one epoch."""
    began = process_time()
    count = sum(1 for _ in batches(epoch))
    return count / (process_time() - began)
