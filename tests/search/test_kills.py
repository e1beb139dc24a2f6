"""Searches in processes of their own that are killed at random moments, again and again."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.forking.starting import run
from tests.search.killed_program import TRIALS
from tests.search.support import without_clocks

ROOT = Path(__file__).parents[2]
STRATEGIES = ("random", "tpe", "evolution", "nsga2")
SEVERAL = "evolution:8:3"

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="the searches are forks")]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What came of the searches that were killed, and of those that were not; one process starts them all."""
    wanted = [*(f"{strategy}:20:1" for strategy in STRATEGIES), SEVERAL]
    command = ["-m", "tests.search.killed_program", str(tmp_path_factory.mktemp("kills")), *wanted]
    done = run(*command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def assert_nothing_lost_or_repeated(found: dict[str, Any]) -> None:
    """Compare with the end what was finished after each kill: it is still there, unchanged, and was not begun again."""
    last = {trial["number"]: trial for trial in found["cut"]["trials"]}
    for seen in found["seen"]:
        for trial in seen["finished"]:
            number = str(trial["number"])
            assert last[trial["number"]] == trial
            assert found["begun"].get(number) == seen["begun"].get(number)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_search_with_one_worker_killed_20_times_equals_one_that_was_not(
    killed: dict[str, Any], strategy: str
) -> None:
    found = killed[f"{strategy}:20:1"]
    assert len(found["seen"]) == 20
    assert 0 < len(found["seen"][-1]["finished"]) < TRIALS
    assert without_clocks(found["cut"]) == without_clocks(found["whole"])
    assert_nothing_lost_or_repeated(found)


def test_several_searches_of_one_store_killed_again_and_again_lose_and_repeat_nothing(killed: dict[str, Any]) -> None:
    found = killed[SEVERAL]
    trials = found["cut"]["trials"]
    assert {trial["state"] for trial in trials} == {"complete"}
    assert sum("replayed_from" not in trial for trial in trials) == TRIALS
    assert [trial["number"] for trial in trials] == list(range(len(trials)))
    assert_nothing_lost_or_repeated(found)
