"""A search to be killed: `python -m tests.nas.search.killed_program FOLDER STRATEGY WORKERS`.

Each trial writes its number to a file when it begins, so that one that is run again can be told.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

from treadle import nas

RAN = "TREADLE_TEST_RAN"
"""The environment variable with the file that trials write their numbers to."""
TRIALS = 30


def slow_words(taken: dict[str, str]) -> float:
    """Judge a word in three steps, each of which takes a moment."""
    with Path(os.environ[RAN]).open("a") as file:
        file.write(f"{nas.current_trial()}\n")
    level = sum(letter == "a" for letter in taken.values()) + torch.rand(()).item()
    for step in range(1, 4):
        time.sleep(0.004)
        nas.report_intermediate_result(level * step)
    return level


def make(folder: Path, strategy: str, workers: int) -> nas.Search:
    """Return the search."""
    strategies: dict[str, Any] = {"evolution": nas.Evolution(6, 3), "tpe": nas.Tpe(8), "nsga2": nas.Nsga2(6)}
    return nas.Search(
        {f"x{place}": nas.one_of(*"abcd") for place in range(5)},
        slow_words,
        strategy=strategies.get(strategy, strategy),
        pruner="median" if strategy == "random" else None,
        trials=TRIALS,
        run_dir=folder,
        workers=workers,
        launcher="inline" if workers == 1 else "processes",
    )


if __name__ == "__main__":
    make(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])).run()
