"""Searches in processes of their own that are killed by SIGKILL, at random moments, again and again."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.nas.search.killed_program import RAN, TRIALS, make
from tests.nas.search.support import numbers, without_clocks

ROOT = Path(__file__).parents[3]
LIMIT_SECONDS = 300


def start(folder: Path, strategy: str, workers: int) -> subprocess.Popen[bytes]:
    """Start the search as a process of its own."""
    command = [sys.executable, "-m", "tests.nas.search.killed_program", str(folder), strategy, str(workers)]
    environment = {**os.environ, RAN: str(folder) + ".ran", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, cwd=ROOT, env=environment)


def finish(folder: Path, strategy: str, workers: int) -> None:
    """Run the search to its end."""
    assert start(folder, strategy, workers).wait(LIMIT_SECONDS) == 0


def begun(folder: Path) -> Counter[int]:
    """Return how often each trial has begun."""
    ran = Path(str(folder) + ".ran")
    return Counter(map(int, ran.read_text().split())) if ran.exists() else Counter()


def wait_for_trials(process: subprocess.Popen[bytes], folder: Path, more: int) -> bool:
    """Wait until so many trials have begun; return whether the search is still running then."""
    wanted, deadline = begun(folder).total() + more, time.monotonic() + LIMIT_SECONDS
    while begun(folder).total() < wanted and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    return process.poll() is None


def kill_often(folder: Path, strategy: str, workers: int, kills: int) -> list[tuple[dict[int, Any], Counter[int]]]:
    """Kill the search so many times, or until it ends; return what was finished, and begun, after each kill."""
    chance = random.Random(strategy)
    seen = []
    for _ in range(kills):
        process = start(folder, strategy, workers)
        # From the very beginning of the process to the middle of its second trial.
        going = wait_for_trials(process, folder, chance.choice([0, 1, 1, 1, 2, 2]))
        if not going:
            break
        time.sleep(chance.uniform(0, 0.02))
        process.send_signal(signal.SIGKILL)
        process.wait()
        if (folder / "search.journal").exists():
            seen.append((finished(folder, strategy, workers), begun(folder)))
    return seen


def finished(folder: Path, strategy: str, workers: int) -> dict[int, Any]:
    """Return the trials that have come to an end."""
    results = make(folder, strategy, workers).results()
    return {trial["number"]: trial for trial in results["trials"] if trial["state"] not in ("running", "waiting")}


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["random", "evolution", "tpe"])
def test_a_search_with_one_worker_killed_20_times_equals_one_that_was_not(tmp_path: Path, strategy: str) -> None:
    whole, cut = tmp_path / "whole" / "search", tmp_path / "cut" / "search"
    for folder in (whole, cut):
        folder.parent.mkdir()
    finish(whole, strategy, 1)
    seen = kill_often(cut, strategy, 1, 20)
    finish(cut, strategy, 1)
    assert len(seen) >= 10
    expected = without_clocks(make(whole, strategy, 1).results())
    assert without_clocks(make(cut, strategy, 1).results()) == expected
    assert_nothing_repeated(cut, strategy, 1, seen)


@pytest.mark.slow
def test_with_several_workers_no_finished_trial_is_lost_or_repeated(tmp_path: Path) -> None:
    folder = tmp_path / "search"
    seen = kill_often(folder, "evolution", 2, 6)
    finish(folder, "evolution", 2)
    assert len(seen) >= 4
    results = make(folder, "evolution", 2).results()
    counted = [trial for trial in results["trials"] if "replayed_from" not in trial]
    assert len(counted) == TRIALS
    assert len(numbers(results)) == len(results["trials"])
    assert_nothing_repeated(folder, "evolution", 2, seen)


def assert_nothing_repeated(
    folder: Path, strategy: str, workers: int, seen: list[tuple[dict[int, Any], Counter[int]]]
) -> None:
    """Compare with the end what was finished after each kill: it is still there, unchanged, and was not begun again."""
    last, total = finished(folder, strategy, workers), begun(folder)
    for trials, counts in seen:
        for number, trial in trials.items():
            assert last[number] == trial
            assert total[number] == counts[number]
