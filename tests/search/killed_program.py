"""Searches to be killed: `python -m tests.search.killed_program FOLDER STRATEGY:KILLS:SEARCHES...`.

The searches are forks of this program, which has loaded everything once: a start takes milliseconds. Each is ended by
the system after a random share of processor time, without a word: the default of SIGPROF runs no handler. Processor
time, because a busy machine must not decide how far a search gets.

Each trial writes its number to a file when it begins, so that one that is run again can be told.
"""

import json
import math
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from treadle import nas

TRIALS = 60
STEPS = 3
STEP_SECONDS = 0.001
MOST_SECONDS = 0.03
"""Processor time after which a search is dead at the latest: a trial or three."""


_deadline = math.inf


def _die_if_late() -> None:
    """Die where the system should have ended this process: it looks now and then, and on a busy machine late."""
    if time.process_time() > _deadline:
        os.kill(os.getpid(), signal.SIGPROF)


def judge(taken: dict[str, str]) -> float:
    """Judge a word in a few steps, with numbers that depend on the random numbers of the trial."""
    with Path(os.environ["RAN"]).open("a") as file:
        file.write(f"{nas.current_trial()}\n")
    level = sum(letter == "a" for letter in taken.values()) + torch.rand(()).item()
    for step in range(1, STEPS + 1):
        until = time.process_time() + STEP_SECONDS
        while time.process_time() < until:
            _die_if_late()
        nas.report_intermediate_result(level * step)
    return level


def make(folder: Path, strategy: str) -> nas.Search:
    """Return the search."""
    strategies: dict[str, Any] = {"evolution": nas.Evolution(6, 3), "tpe": nas.Tpe(8), "nsga2": nas.Nsga2(6)}
    return nas.Search(
        {f"x{place}": nas.one_of(*"abcd") for place in range(5)},
        judge,
        strategy=strategies.get(strategy, strategy),
        pruner="median" if strategy == "random" else None,
        trials=TRIALS,
        run_dir=folder,
    )


def forked(folder: Path, strategy: str, seconds: float | None) -> int:
    """Start the search in a process of its own, which dies after so much processor time."""
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        os.environ["RAN"] = f"{folder}.ran"
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        if seconds is not None:
            global _deadline
            _deadline = time.process_time() + seconds
            signal.setitimer(signal.ITIMER_PROF, seconds)
        make(folder, strategy).run()
        status = 0
    finally:
        os._exit(status)


def finish(folder: Path, strategy: str, searches: int = 1) -> None:
    """Run the search to its end, by several processes at once."""
    processes = [forked(folder, strategy, None) for _ in range(searches)]
    for process in processes:
        _, status = os.waitpid(process, 0)
        assert status == 0, status


def kill_often(folder: Path, strategy: str, kills: int, searches: int) -> list[dict[str, Any]]:
    """Kill searches so many times; return, after each time, what was finished and how often each trial had begun."""
    chance, seen, idle = random.Random(strategy), list[dict[str, Any]](), 0
    while len(seen) < kills:
        # Where a start takes more processor time than usual, as beside others it may, searches live longer.
        longest = MOST_SECONDS * (1 + idle / 2)
        processes = [forked(folder, strategy, chance.uniform(1e-4, longest)) for _ in range(searches)]
        statuses = [os.waitpid(process, 0)[1] for process in processes]
        killed = [os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF for status in statuses]
        assert all(killed), f"after {len(seen)} kills the search ended with {statuses}"
        now = finished(folder, strategy)
        idle = 0 if seen and len(now) > len(seen[-1]["finished"]) else idle + 1
        seen.append({"finished": now, "begun": begun(folder)})
    return seen


def finished(folder: Path, strategy: str) -> list[dict[str, Any]]:
    """Return the trials that have come to an end."""
    if not (folder / "search.journal").exists():
        return []
    search = make(folder, strategy)
    trials = search.results()["trials"]
    search.close()
    return [trial for trial in trials if trial["state"] not in ("running", "waiting")]


def begun(folder: Path) -> dict[str, int]:
    """Return how often each trial has begun."""
    ran = Path(f"{folder}.ran")
    return dict(Counter(ran.read_text().split())) if ran.exists() else {}


def warm_up(strategy: str) -> None:
    """Load what a search loads when it begins, so that its forks have it."""
    search = make(Path("nowhere"), strategy)
    nas.Search(search.searched, lambda taken: 0.0, strategy=search.rules.strategy, trials=10, store="memory").run()


def main(root: Path, strategy: str, kills: int, searches: int) -> dict[str, Any]:
    """Run a search whole, and one that is killed again and again; return what came of them."""
    whole, cut = root / "whole" / "search", root / "cut" / "search"
    for folder in (whole, cut):
        folder.parent.mkdir(parents=True)
    warm_up(strategy)
    finish(whole, strategy)
    seen = kill_often(cut, strategy, kills, searches)
    finish(cut, strategy, searches)
    return {
        "whole": make(whole, strategy).results(),
        "cut": make(cut, strategy).results(),
        "seen": seen,
        "begun": begun(cut),
    }


if __name__ == "__main__":
    found = {}
    for argument in sys.argv[2:]:
        name, often, many = argument.split(":")
        found[argument] = main(Path(sys.argv[1]) / name / many, name, int(often), int(many))
    print(json.dumps(found))
