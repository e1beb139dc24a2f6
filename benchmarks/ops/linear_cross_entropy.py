"""The head and its cross-entropy in one: Treadle's operation, torch's, and both steps apart, in turn.

Each is compared with both steps apart in fp64: how far loss and gradients are off, of the largest number. Memory is the
most that a process of its own holds beyond what it held before, as the kernel counts it.
"""

import argparse
import multiprocessing
import random
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from time import process_time
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.provenance import provenance
from benchmarks.results import write_section
from treadle.ops.linear_cross_entropy import linear_cross_entropy

ROWS, WIDTH, CLASSES = 4096, 128, 16_384
IGNORED = 0.1
OURS, TORCHS, APART = "treadle", "torch", "linear and cross_entropy"
DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16}

Way = Callable[[Tensor, Tensor, Tensor], Tensor]


def ways() -> dict[str, Way]:
    """Return the ways to compute the loss that this version of torch has."""
    found: dict[str, Way] = {
        OURS: linear_cross_entropy,
        APART: lambda hidden, weight, targets: F.cross_entropy(F.linear(hidden, weight), targets),
    }
    torchs = getattr(F, "linear_cross_entropy", None)
    if torchs is not None:
        options = torch.nn.LinearCrossEntropyOptions()
        found[f"{TORCHS}, in chunks"] = lambda hidden, weight, targets: torchs(hidden, weight, targets, options=options)
    return found


def inputs(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return hidden states, a weight and targets, some of which do not count."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.float64)
    weight = torch.randn(CLASSES, WIDTH, generator=generator, dtype=torch.float64) / WIDTH**0.5
    targets = torch.randint(CLASSES, (ROWS,), generator=generator)
    targets[: int(ROWS * IGNORED)] = -100
    # Of numbers that all formats have, so that what is compared is the operation and not its inputs.
    rounded = [value.bfloat16().to(dtype).requires_grad_() for value in (hidden, weight)]
    return rounded[0], rounded[1], targets


def numbers_of(way: Way, dtype: torch.dtype) -> list[Tensor]:
    """Return loss, gradient of hidden states and gradient of the weight."""
    hidden, weight, targets = inputs(dtype)
    loss = way(hidden, weight, targets)
    loss.backward()  # type: ignore[no-untyped-call]
    assert hidden.grad is not None
    assert weight.grad is not None
    return [value.detach().double() for value in (loss, hidden.grad, weight.grad)]


def errors() -> dict[str, dict[str, list[float]]]:
    """Return for each format and way how far the three numbers are off, of the largest."""
    exact = numbers_of(ways()[APART], torch.float64)
    return {
        name: {
            kind: [
                float((own - true).abs().max() / true.abs().max())
                for own, true in zip(numbers_of(way, dtype), exact, strict=True)
            ]
            for kind, way in ways().items()
        }
        for name, dtype in DTYPES.items()
    }


def seconds(way: Way, dtype: torch.dtype) -> float:
    """Return the CPU time of a forward and a backward pass."""
    hidden, weight, targets = inputs(dtype)
    began = process_time()
    way(hidden, weight, targets).backward()  # type: ignore[no-untyped-call]
    return process_time() - began


def _hold(kind: str, name: str, answer: Any) -> None:
    torch.set_num_threads(1)
    dtype = DTYPES[name]
    hidden, weight, targets = inputs(dtype)
    # Threads and libraries, which the first product brings.
    F.cross_entropy(F.linear(hidden[:2], weight[:8]), targets[:2].clamp(0, 7)).backward()  # type: ignore[no-untyped-call]
    # Has the kernel begin anew with the most that was held.
    Path("/proc/self/clear_refs").write_text("5")
    before = _most_held()
    ways()[kind](hidden, weight, targets).backward()  # type: ignore[no-untyped-call]
    answer.put(_most_held() - before)


def _most_held() -> float:
    (line,) = (one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def megabytes(kind: str, name: str) -> float:
    """Return the MiB that a forward and a backward pass hold at most, in a process of their own."""
    context = multiprocessing.get_context("spawn")
    answer = context.Queue()
    process = context.Process(target=_hold, args=(kind, name, answer))
    process.start()
    found: float = answer.get()
    process.join()
    return found


def measure(rounds: int) -> dict[str, Any]:
    """Return numbers, times and memory."""
    torch.set_num_threads(1)
    chance = random.Random(0)
    times: dict[str, dict[str, list[float]]] = {name: {kind: [] for kind in ways()} for name in DTYPES}
    for number in range(rounds + 1):
        for name, dtype in DTYPES.items():
            for kind in chance.sample(list(ways()), len(ways())):
                taken = seconds(ways()[kind], dtype)
                if number:
                    times[name][kind].append(taken)
    held = {name: {kind: megabytes(kind, name) for kind in ways()} for name in DTYPES}
    return {"errors": errors(), "times": times, "memory": held}


def lines(found: dict[str, Any]) -> Iterator[str]:
    """Yield the rows of the table."""
    for name in DTYPES:
        own = found["times"][name][OURS]
        for kind in ways():
            times = found["times"][name][kind]
            ratios = [other / mine for other, mine in zip(times, own, strict=True)]
            low, middle, high = statistics.quantiles(ratios, n=4)
            off = " | ".join(f"{error:.1e}" for error in found["errors"][name][kind])
            memory = found["memory"][name][kind]
            yield (
                f"| {name} | {kind} | {off} | {memory:.0f} | {statistics.median(times) * 1e3:.0f} | {middle:.2f} | "
                f"{low:.2f}-{high:.2f} |"
            )


def main() -> None:
    """Measure, print, and write the section."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-write", action="store_true", help="print only")
    options = parser.parse_args()
    found = measure(options.rounds)
    facts = provenance("ops.linear_cross_entropy", ["torch", "treadle"])
    table = "\n".join(lines(found))
    text = (
        "## The head and its cross-entropy in one\n\n"
        f"{facts}\n\n{ROWS} rows of {WIDTH} numbers, {CLASSES} classes, one row in ten not counted, one thread; "
        "forward and backward pass. Off: the largest difference from both steps apart in fp64, of the largest number. "
        "Memory: the most that a process of its own holds beyond its inputs. Time: CPU time, in turn; ratio to "
        "Treadle's of the same round.\n\n"
        "| format | way | loss off | hidden's gradient off | weight's gradient off | MiB | ms | to treadle | IQR |\n"
        "|---|---|--:|--:|--:|--:|--:|--:|--:|\n"
        f"{table}\n"
    )
    print(text)
    if not options.no_write:
        write_section("linear-cross-entropy", text)


if __name__ == "__main__":
    main()
