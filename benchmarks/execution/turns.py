"""The contenders of the section on small models, each with one kind of input."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from benchmarks.execution.session import Findings
from benchmarks.execution.work import Clock, MakeOptimizer, Material, default_adamw, fused_adamw, train_by_hand

EVERY_GRAPH, EVERY_PEER, EVERY_COMPILED = 5, 8, 10
"""In which rounds graphs and peers take part; loops that are compared by a few percent take part in all."""
EAGER_BAR, GRAPH_BAR = 1.03, 1.10
COMPILED_LIMITS = {"MLP": 65.0, "CNN": 400.0}
DEVICE, RESIDENT, HOST = "ready, on the device", "resident, gathered in the graph", "ready, on the host"
STATIC = "one for ever"
AUTOTUNED = "max-autotune-no-cudagraphs"
PLAIN_LOOP = "hand-written loop, AdamW as it comes"
FUSED_LOOP = "hand-written loop, AdamW fused"
PEERS = {
    "accelerate, loop by hand": ("accelerate_loop", {}),
    "Ignite, supervised trainer": ("ignite_engine", {}),
    "pytorch-accelerated, default": ("pytorch_accelerated_trainer", {}),
    "Lightning, barebones=True": ("lightning_trainer", {"barebones": True}),
    "Lightning, default": ("lightning_trainer", {}),
    "transformers Trainer, default": ("transformers_trainer", {}),
}


@dataclass(frozen=True)
class Turn:
    """One contender with one kind of input.

    Args:
        name: The contender.
        inputs: How it gets its batches.
        run: Trains, with a clock around each epoch; the last one counts.
        steps: Steps of an epoch.
        every: In each which round it takes part.
        baseline: The contender that it is compared with, with the same inputs.
        bar: How many times as long as that it may take.
        limit_us: How long a step may take.
    """

    name: str
    inputs: str
    run: Callable[[Clock], None]
    steps: int
    every: int = 1
    baseline: str | None = None
    bar: float | None = None
    limit_us: float | None = None

    def is_due(self, number: int) -> bool:
        """Whether it takes part in a round; before the first, only those warm up that are compared by a few percent."""
        return self.every == 1 if number == 0 else (number - 1) % self.every == 0

    @property
    def label(self) -> str:
        """The name and the inputs."""
        return f"{self.name} | {self.inputs}"

    def facts(self) -> dict[str, Any]:
        """Return what the report needs to know."""
        base = None if self.baseline is None else f"{self.baseline} | {self.inputs}"
        return {"name": self.name, "inputs": self.inputs, "baseline": base, "bar": self.bar, "limit_us": self.limit_us}


def make_turns(findings: Findings, material: Material) -> list[Turn]:
    """Return all contenders for one work; those that cannot be prepared are recorded as missing."""
    return [*eager_turns(material), *peer_turns(findings, material), *graph_turns(findings, material)]


def eager_turns(material: Material) -> list[Turn]:
    """Return the loops that go launch by launch."""
    batches = material.batches[: material.work.eager_steps]
    steps = len(batches)

    def by_hand(make_optimizer: MakeOptimizer, clock: Clock) -> None:
        train_by_hand(material.job(batches, make_optimizer), clock)

    def treadle(clock: Clock) -> None:
        # It gets the optimizer as it comes, and makes it a fused one where that is possible.
        load_treadle().train(material.job(batches, default_adamw), clock)

    return [
        Turn(PLAIN_LOOP, DEVICE, partial(by_hand, default_adamw), steps, every=EVERY_PEER),
        Turn(FUSED_LOOP, DEVICE, partial(by_hand, fused_adamw), steps),
        Turn(f"{FUSED_LOOP}, again", DEVICE, partial(by_hand, fused_adamw), steps, baseline=FUSED_LOOP),
        Turn("treadle eager", DEVICE, treadle, steps, baseline=FUSED_LOOP, bar=EAGER_BAR),
    ]


def peer_turns(findings: Findings, material: Material) -> list[Turn]:
    """Return the trainers of others, with the optimizer as it comes."""
    batches = material.batches[: material.work.eager_steps]
    turns = []
    for name, (module, options) in PEERS.items():
        train = findings.attempt(name, partial(_load, module))
        if train is not None:

            def run(clock: Clock, train: Any = train, options: Any = options) -> None:
                train(material.job(batches, default_adamw), clock, **options)

            turns.append(Turn(name, DEVICE, run, len(batches), every=EVERY_PEER, baseline=PLAIN_LOOP))
    return turns


def _load(module: str) -> Any:
    return import_module(f"benchmarks.contenders.{module}").train_clocked


def load_treadle() -> Any:
    return import_module("benchmarks.contenders.treadle_execution")


def graph_turns(findings: Findings, material: Material) -> list[Turn]:
    """Return captured steps, by hand and by Treadle, for each kind of input; the hand's are captured here."""
    turns = []
    for compiled in (False, True):
        inside = " + compile" if compiled else ""
        limit = COMPILED_LIMITS[material.work.name] if compiled else None
        every, steps = EVERY_COMPILED if compiled else EVERY_GRAPH, material.work.graph_steps
        for inputs in (DEVICE, RESIDENT) if compiled else (STATIC, DEVICE, RESIDENT, HOST):
            by_hand = f"hand-captured graph{inside}"
            prepare = partial(hand_captured, material, inputs, compiled)
            run = findings.attempt(f"{material.work.name}: {by_hand} | {inputs}", prepare)
            if run is not None:
                turns.append(Turn(by_hand, inputs, run, steps, every))
            if inputs != STATIC:
                train = partial(treadle_captured, material, inputs, compiled)
                name = f"treadle graph{inside}"
                bar = None if compiled else GRAPH_BAR
                turns.append(Turn(name, inputs, train, steps, every, by_hand, bar, limit))
                if compiled and material.work.name == "MLP" and inputs == DEVICE:
                    # Choosing kernels takes half a minute, once; only here are there few enough to wait for.
                    tuned = partial(treadle_captured, material, inputs, AUTOTUNED)
                    turns.append(Turn(f"{name}, {AUTOTUNED}", inputs, tuned, steps, every, by_hand, None, limit))
    return turns


def hand_captured(material: Material, inputs: str, compiled: bool) -> Callable[[Clock], None]:
    """Capture a step and return what trains with it."""
    if material.device.type != "cuda":
        batches = material.host_batches if inputs == HOST else material.batches
        return lambda clock: train_by_hand(material.job(batches, fused_adamw), clock, epochs=1)
    graphs = import_module("benchmarks.execution.graphs")
    feeds = {STATIC: graphs.StaticFeed, DEVICE: graphs.CopyFeed, RESIDENT: graphs.ResidentFeed, HOST: graphs.HostFeed}
    return partial(graphs.train_captured, feeds[inputs](material, compiled))


def treadle_captured(material: Material, inputs: str, compiled: bool | str, clock: Clock) -> None:
    """Train two epochs with Treadle; capturing is a matter of the first."""
    options: dict[str, Any] = {"execution": "graph", "compiled": compiled}
    if material.device.type != "cuda":
        options = {"execution": "eager"}
    if inputs == RESIDENT:
        load_treadle().train_resident(material.job(material.batches, fused_adamw), clock, material, **options)
    else:
        batches = material.host_batches if inputs == HOST else material.batches
        load_treadle().train(material.job(batches, fused_adamw), clock, **options)
