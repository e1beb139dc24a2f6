"""What an eager and a recorded step cost on the GPU before a change and after it: two checkouts of Treadle, in turns.

`python -m benchmarks.execution.before_after_gpu ../before --out FOLDER`, where `../before` holds `treadle/` as it was.
Each checkout works in a process of its own, which trains when it is told to and then waits; in each round everybody
trains once, in an order that is drawn anew. After some rounds both processes are replaced, so that no ratio hangs on
where one of them happened to lie in memory. Before anything is timed, the bits are compared in which both end.
"""

import argparse
import gc
import hashlib
import io
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median, quantiles

import torch

from benchmarks.execution.work import CNN, MLP, SMOKE, Clock, Material, default_adamw, fused_adamw, train_by_hand
from benchmarks.provenance import provenance
from benchmarks.results import write_section

ROOT = Path(__file__).parents[2]
HAND = "hand-written loop"
NOTES = """\
MLP 64-64-64-10, batch 32, and a CNN of 0.42 million parameters, batch 128 (as in the section on execution), AdamW,
batches ready on the device, default callbacks. A time is that of the second epoch, the GPU idle at both ends: 150 eager
steps, 1,000 (MLP) or 300 (CNN) recorded ones. Ratio: after to before, of the same round; the hand-written loop, which
is the same in both, shows what the machine itself adds. Bits: those of the weights after two epochs on kernels that
repeat themselves."""


def eager(material: Material, clock: Clock) -> torch.Tensor:
    """Train step by step."""
    return _by_treadle(material, clock, "eager", material.work.eager_steps)


def graph(material: Material, clock: Clock) -> torch.Tensor:
    """Train by replays of a recorded step."""
    recordable = material.device.type == "cuda"
    return _by_treadle(material, clock, "graph" if recordable else "eager", material.work.graph_steps)


def by_hand(material: Material, clock: Clock) -> torch.Tensor:
    """Train as one writes it by hand."""
    job = material.job(material.batches[: material.work.eager_steps], fused_adamw)
    train_by_hand(job, clock)
    return job.weights()


def _by_treadle(material: Material, clock: Clock, execution: str, steps: int) -> torch.Tensor:
    from benchmarks.contenders.treadle_execution import train

    job = material.job(material.batches[:steps], default_adamw)
    train(job, clock, execution=execution)
    return job.weights()


WAYS: dict[str, Callable[[Material, Clock], torch.Tensor]] = {HAND: by_hand, "eager": eager, "graph": graph}


def work(smoke: bool) -> None:
    """Train what each line of the standard input names, and answer with seconds and a hash of the weights."""
    # What trainers print goes nowhere: the standard output is for answers.
    answers, sys.stdout = sys.stdout, io.StringIO()
    warnings.simplefilter("ignore")
    device = torch.device("cpu" if smoke else "cuda")
    materials = {each.name: Material(each, device, 0) for each in (SMOKE if smoke else (MLP, CNN))}
    gc.freeze()
    for line in sys.stdin:
        name, way, exact = json.loads(line)
        torch.use_deterministic_algorithms(exact, warn_only=True)
        gc.collect()
        clock = Clock(device)
        weights = WAYS[way](materials[name], clock)
        steps = materials[name].work.graph_steps if way == "graph" else materials[name].work.eager_steps
        digest = hashlib.sha256(weights.cpu().numpy().tobytes()).hexdigest()[:16]
        print(json.dumps([clock.seconds[-1] / steps * 1e6, digest]), file=answers, flush=True)


class Worker:
    """A process that has Treadle from one checkout.

    Args:
        checkout: The folder that holds `treadle/`.
        smoke: Whether it works in tiny sizes on the CPU.
    """

    def __init__(self, checkout: Path, smoke: bool) -> None:
        self._folder = tempfile.TemporaryDirectory()
        # The benchmark is this one's for both; only the package differs.
        (Path(self._folder.name) / "benchmarks").symlink_to(ROOT / "benchmarks")
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(checkout), self._folder.name)),
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.execution.before_after_gpu", "--work", *(["--smoke"] if smoke else [])],
            cwd=self._folder.name,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def train(self, name: str, way: str, exact: bool = False) -> tuple[float, str]:
        """Return the microseconds of a step, and a hash of the weights at the end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([name, way, exact]), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit(f"{way} on {name} ended a process with status {self._process.wait()}; see above")
        microseconds, digest = json.loads(answer)
        return microseconds, digest

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._folder.cleanup()


@dataclass
class Case:
    """What was found of one work, trained in one way.

    Attributes:
        same: Whether both checkouts came to the same bits, each time.
        times: Microseconds of a step before and after, in every round.
    """

    same: bool = True
    times: list[tuple[float, float]] = field(default_factory=list)


def measure(checkouts: list[Path], names: list[str], options: argparse.Namespace) -> dict[str, Case]:
    """Return what was found, by work and way; stops when the time is up."""
    chance, until = random.Random(0), time.monotonic() + options.budget_s
    cases = [(name, way) for name in names for way in WAYS]
    found = {f"{name}, {way}": Case() for name, way in cases}
    for pair in range(options.pairs):
        workers = [Worker(checkout, options.smoke) for checkout in checkouts]
        for name, way in cases:
            # The first training of a process pays for libraries and kernels; it serves the comparison of bits.
            ends = [worker.train(name, way, exact=True)[1] for worker in workers]
            found[f"{name}, {way}"].same &= ends[0] == ends[1]
            print(f"parity, {name}, {way}: {ends}", flush=True)
        share = time.monotonic() + (until - time.monotonic()) / (options.pairs - pair)
        rounds = 0
        while rounds < 2 or (time.monotonic() < share and not options.smoke):
            for name, way in chance.sample(cases, len(cases)):
                order = chance.sample([0, 1], 2)
                times = {place: workers[place].train(name, way)[0] for place in order}
                found[f"{name}, {way}"].times.append((times[0], times[1]))
            rounds += 1
        print(f"pair {pair + 1} of {options.pairs}: {rounds} rounds", flush=True)
        for worker in workers:
            worker.close()
    return found


def section(found: dict[str, Case], options: argparse.Namespace) -> str:
    """Return what was measured in Markdown."""
    lines = ["| case | before, µs | after, µs | after/before | IQR | bits |", "|---|--:|--:|--:|--:|---|"]
    for name, case in found.items():
        ratios = [after / before for before, after in case.times]
        low, _, high = quantiles(ratios, n=4)
        before, after = (median(row[place] for row in case.times) for place in (0, 1))
        times, bits = f"{before:.1f} | {after:.1f}", "the same" if case.same else "others"
        lines.append(f"| {name} | {times} | {median(ratios):.3f} | {low:.3f}-{high:.3f} | {bits} |")
    rounds = len(next(iter(found.values())).times)
    facts = {"before": options.commit, "rounds": f"{rounds} in {options.pairs} pairs of processes"}
    if not options.smoke:
        facts |= {"device": torch.cuda.get_device_name(), "CUDA": str(torch.version.cuda)}
    where_from = provenance("execution.before_after_gpu", ["torch", "triton"], **facts)
    # The folder is one of that machine, and of no use to whoever measures again.
    where_from = re.sub(r" --out[ =][^\s`]+", "", where_from)
    return f"## A step before and after, on the GPU\n\n{where_from}\n\n{NOTES}\n\n" + "\n".join(lines)


def main() -> None:
    """Let both take their turns, print the table and write it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.execution.before_after_gpu", description=__doc__)
    parser.add_argument("before", type=Path, nargs="?", help="a folder that holds treadle/ as it was")
    parser.add_argument("--commit", default="the other folder", help="which commit that is, for the table")
    parser.add_argument("--pairs", type=int, default=3, help="how often both processes are begun anew")
    parser.add_argument("--budget-s", type=float, default=100.0)
    parser.add_argument("--out", type=Path, help="a folder for the table and all times")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes on the CPU, nothing recorded: no figures")
    parser.add_argument("--write-results", type=Path, metavar="MARKDOWN", help="put such a table into RESULTS.md")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.smoke)
        return
    if options.write_results:
        write_section("before-after-gpu", options.write_results.read_text(encoding="utf-8"))
        return
    if options.before is None or not (options.before / "treadle" / "__init__.py").is_file():
        parser.error(f"{options.before}: name a folder that holds treadle/ as it was")
    names = [each.name for each in (SMOKE if options.smoke else (MLP, CNN))]
    found = measure([options.before.resolve(), ROOT], names, options)
    table = section(found, options)
    print(table)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "before_after_gpu.md").write_text(table + "\n", encoding="utf-8")
        (options.out / "before_after_gpu.json").write_text(json.dumps(found, default=asdict), encoding="utf-8")


if __name__ == "__main__":
    main()
