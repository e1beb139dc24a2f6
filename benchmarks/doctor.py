"""What `treadle doctor` costs for a tiny program: CPU seconds beside those of the program itself, in turns.

`python -m benchmarks.doctor`. The program trains a small network for 16 steps. CPU time is that of the process and of
all its children, imports included; tests do not look at it, but count processes and what is loaded in them
(`tests/tools/doctor/test_work.py`).
"""

import argparse
import os
import random
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median, quantiles

from benchmarks.provenance import provenance
from benchmarks.results import write_section

BAR = 5.0
"""CPU seconds that an examination of a tiny program may take."""
PROGRAM = """
import torch
from torch import nn
from torch.utils.data import TensorDataset
from treadle import Trainer

torch.manual_seed(0)
inputs = torch.randn(320, 4)
labels = (inputs.sum(1) > 0).long()
model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
trainer = Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=(), seed=0)
trainer.train(TensorDataset(inputs[:256], labels[:256]), 2, TensorDataset(inputs[256:], labels[256:]))
"""
SETS = "words = {'warm', 'cold'}\n"
"""A line with a set: the program is then run in processes with other orders of sets, too."""


def cpu_seconds(*arguments: str) -> float:
    """Run Python with these arguments, and return the CPU time it and its children took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, *arguments],
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Let all take their turns, print the table, write the section."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.doctor", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        plain, with_sets = Path(folder) / "plain.py", Path(folder) / "with_sets.py"
        plain.write_text(PROGRAM, encoding="utf-8")
        with_sets.write_text(SETS + PROGRAM, encoding="utf-8")
        cases = {
            "the program by itself": (str(plain),),
            "`treadle doctor` of it": ("-m", "treadle", "doctor", str(plain)),
            "`treadle doctor`, with a set in it": ("-m", "treadle", "doctor", str(with_sets)),
        }
        seen: dict[str, list[float]] = {name: [] for name in cases}
        for _ in range(options.rounds):
            for name in random.sample(list(cases), len(cases)):
                seen[name].append(cpu_seconds(*cases[name]))
    itself = seen["the program by itself"]
    lines = ["| what | CPU s | IQR | times the program |", "|---|--:|--:|--:|"]
    for name, times in seen.items():
        low, _, high = quantiles(times, n=4)
        ratio = median(one / other for one, other in zip(times, itself, strict=True))
        lines.append(f"| {name} | {median(times):.2f} | {low:.2f}-{high:.2f} | {ratio:.2f} |")
    took = median(seen["`treadle doctor` of it"])
    lines.append(f"\nBar: at most {BAR:g} s of CPU for a tiny program: {'met' if took <= BAR else 'missed'}.")
    facts = provenance("doctor", ["torch", "treadle"], rounds=str(options.rounds))
    section = "\n".join([f"## What the doctor costs\n\n{facts}\n", *lines])
    print(section)
    write_section("doctor", section)


if __name__ == "__main__":
    main()
