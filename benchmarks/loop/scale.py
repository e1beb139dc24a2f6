"""What a step on several processes costs beside a hand-written loop: python -m benchmarks.loop.scale --write

Ratios of the time of a step, in alternating rounds on the same processes, and the bytes of a process under each plan:
what it holds between two steps, its weights and the state of the optimizer, and at most within one, with gradients,
activations and what it gathers. The table goes into docs/scaling.md.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import TensorDataset

from examples.language_model.gpt import GPT
from treadle import Trainer
from treadle.parallel import Plan

PAGE = Path(__file__).parents[2] / "docs" / "scaling.md"
BEGIN, END = "<!-- begin: written by benchmarks/loop/scale.py -->", "<!-- end: benchmarks -->"
VOCABULARY, CONTEXT, BATCH = 64, 32, 4
WEIGHED = 3
"""The step whose memory is looked at: state of the optimizer, buckets and buffers are there by then."""
STEPS = 10
"""Steps in a round; the first round of each loop is not counted."""


def model() -> GPT:
    """Return a GPT whose step is some tens of milliseconds."""
    torch.manual_seed(0)
    return GPT(VOCABULARY, context=CONTEXT, layers=4, heads=4, width=128)


class Loss(nn.Module):
    """The cross-entropy of all places."""

    def forward(self, scores: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(scores.flatten(0, -2), targets.flatten())


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    """Return batches of random tokens."""
    generator = torch.Generator().manual_seed(dist.get_rank() if dist.is_initialized() else 0)
    shape = (count * BATCH, CONTEXT)
    tokens, targets = (torch.randint(VOCABULARY, shape, generator=generator) for _ in range(2))
    return list(zip(tokens.split(BATCH), targets.split(BATCH), strict=True))


def hand_written(kind: str) -> Callable[[], float]:
    """Return a function that times some steps of a plain loop."""
    network: Any = model()
    if kind == "DDP":
        network = DistributedDataParallel(network)
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for block in network.trunk.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(network, mesh=mesh)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    loss, data = Loss(), batches(STEPS)

    def steps() -> float:
        dist.barrier()
        began = time.perf_counter()
        for tokens, targets in data:
            loss(network(tokens), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
        return (time.perf_counter() - began) / STEPS

    return steps


class Timed(Trainer):
    """Notes when updates end."""

    ends: list[float]

    def update(self, phase: Any, window: Any) -> None:
        super().update(phase, window)
        self.ends.append(time.perf_counter())


def of_treadle(parallel: Plan | str) -> Callable[[], float]:
    """Return a function that times as many steps of a trainer, without what is before its first epoch."""
    network = model()
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    trainer = Timed(network, Loss(), optimizer, callbacks=(), seed=0, parallel=parallel)
    joined = [torch.cat(column) for column in zip(*batches(2 * STEPS), strict=True)]
    data = TensorDataset(*joined)

    def steps() -> float:
        trainer.ends = []
        trainer.train(data, max_steps=STEPS + 3, per_device_batch_size=BATCH, log_every=10_000)
        return (trainer.ends[-1] - trainer.ends[2]) / STEPS

    return steps


class Weighed(Trainer):
    """Looks at the memory of its last update.

    Attributes:
        more: The most bytes that it needed beside what was there before.
    """

    more = 0

    def update(self, phase: Any, window: Any) -> None:
        if self.progress.step < WEIGHED - 1:
            super().update(phase, window)
            return
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            super().update(phase, window)
        events = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
        events.sort(key=lambda event: event.start_ns())
        self.more = max(accumulate((event.nbytes() for event in events), initial=0))


def held(parallel: Plan | str) -> tuple[int, int]:
    """Return the bytes of weights and optimizer state on this process, and the most bytes within a step."""
    network = model()
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    trainer = Weighed(network, Loss(), optimizer, callbacks=(), seed=0, parallel=parallel)
    joined = [torch.cat(column) for column in zip(*batches(8), strict=True)]
    trainer.train(TensorDataset(*joined), max_steps=WEIGHED, per_device_batch_size=BATCH)
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    kept = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    between = sum(tensor.nbytes for tensor in (*weights, *kept))
    return between, between + trainer.more


def measure(rounds: int) -> list[str]:
    """Measure on all processes and return the lines of the table."""
    world = dist.get_world_size()
    lines = ["| loop | hand-written, ms a step | Treadle, ms a step | ratio |", "|---|---|---|---|"]
    for kind, plan in (("DDP", "auto"), ("FSDP2", Plan(shard=world))):
        pair = (hand_written(kind), of_treadle(plan))
        times: list[list[float]] = [[one() for one in pair] for _ in range(rounds + 1)][1:]
        ratio = statistics.median(ours / theirs for theirs, ours in times)
        theirs, ours = (1000 * statistics.median(column) for column in zip(*times, strict=True))
        lines.append(f"| {kind} x{world} | {theirs:.1f} | {ours:.1f} | {ratio:.2f} |")
    return [*lines, "", *memory(world)]


def memory(world: int) -> list[str]:
    """Return the lines of the table of what a process holds, the largest of all processes."""
    lines = ["| plan | MiB between two steps | MiB at most within one |", "|---|---|---|"]
    plans: dict[str, Plan | str] = {"DDP": "auto", "FSDP2": Plan(shard=world)}
    plans |= {"tensor": Plan(tensor=world), "pipeline": Plan(pipeline=world)}
    if world == 4:
        plans |= {"hybrid": Plan(data=2, shard=2), "FSDP2 + tensor": Plan(shard=2, tensor=2)}
        plans |= {"DDP + pipeline": Plan(data=2, pipeline=2)}
    for name, plan in plans.items():
        sizes = torch.tensor(held(plan), dtype=torch.float64)
        dist.all_reduce(sizes, dist.ReduceOp.MAX)
        between, within = (sizes / 2**20).tolist()
        lines.append(f"| {name} x{world} | {between:.2f} | {within:.2f} |")
    return lines


def lines_of(processes: int, *arguments: str) -> list[str]:
    """Return what that many processes print."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [sys.executable, *launcher, "-m", "benchmarks.loop.scale", *arguments]
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return [line for line in done.stdout.splitlines() if line.startswith("|") or not line]


def main() -> None:
    """Start the processes, or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="how often each loop is timed; 0 only weighs plans")
    parser.add_argument("--write", action="store_true", help="write the table into docs/scaling.md")
    options = parser.parse_args()
    if "RANK" in os.environ:
        Trainer(nn.Linear(1, 1), None, None, callbacks=())  # joins the group
        lines = measure(options.rounds) if options.rounds else memory(dist.get_world_size())
        if dist.get_rank() == 0:
            print("\n".join(lines))
        return
    timed = lines_of(2, "--rounds", str(options.rounds))
    # The head of the table is there already.
    lines = [*timed, *lines_of(4, "--rounds", "0")[2:]]
    print("\n".join(lines))
    if options.write:
        text = PAGE.read_text()
        PAGE.write_text("\n".join((text.split(BEGIN)[0] + BEGIN, "", *lines, "", END)) + text.split(END)[1])


if __name__ == "__main__":
    main()
