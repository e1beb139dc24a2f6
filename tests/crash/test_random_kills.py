"""A run killed at any moment and started again ends, bit for bit, as one that was never disturbed."""

import random
import signal
from pathlib import Path

import pytest

from tests.crash.attempts import Attempt, assert_same_outcome, finish, kill_until_finished
from tests.crash.conftest import Uninterrupted
from tests.crash.program import WAITING, Options
from tests.interrupting import metric_lines
from tests.storages import KINDS, checkpoints_in
from treadle.checkpoint import CheckpointStore, Policy

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("asynchronous", "kills", "storage"),
    [(True, 14, "folder"), (False, 8, "folder"), (True, 8, "file"), (True, 8, "sqlite"), (False, 4, "file")],
)
def test_a_run_killed_at_random_moments_ends_like_an_undisturbed_one(
    asynchronous: bool, kills: int, storage: str, tmp_path: Path, uninterrupted: Uninterrupted
) -> None:
    chance = random.Random(kills)
    done = runs = 0
    while done < kills:
        folder = tmp_path / str(runs)
        options = Options(folder=folder, asynchronous=asynchronous, storage=storage)
        done += kill_until_finished(options, kills - done, chance, longest=0.8)
        # It is saved at every second step, and killed anywhere.
        assert_same_outcome(folder, uninterrupted(), began=[0, 7, 14, 21, *range(2, 21, 2)])
        runs += 1


@pytest.mark.parametrize("storage", KINDS)
def test_five_kills_within_one_epoch_leave_no_trace(storage: str, tmp_path: Path, uninterrupted: Uninterrupted) -> None:
    # The first epoch has the updates 1 to 7; what comes after the last checkpoint is done again.
    options = Options(folder=tmp_path, storage=storage, kill_at_steps=[1, 3, 4, 6, 7])
    for _ in options.kill_at_steps:
        assert Attempt(options).wait() == -signal.SIGKILL
    assert 8 not in CheckpointStore(checkpoints_in(storage, tmp_path), Policy()).steps()
    finish(options)
    # That of step 6 may still be written when the last kill comes.
    assert_same_outcome(tmp_path, uninterrupted(), began=[4, 6])


@pytest.mark.parametrize("storage", KINDS)
def test_metrics_of_a_killed_run_have_every_step_once(storage: str, tmp_path: Path) -> None:
    options = Options(folder=tmp_path, storage=storage, workers=0, kill_at_steps=[1, 5, 6, 8, 11, 14, 16, 20])
    for _ in options.kill_at_steps:
        assert Attempt(options).wait() == -signal.SIGKILL
    finish(options)
    # Every fifth update is logged, and the last of each epoch.
    assert [line["step"] for line in metric_lines(tmp_path)] == [5, 7, 10, 14, 15, 20, 21]


def test_fetching_workers_do_not_outlive_a_killed_process(tmp_path: Path, uninterrupted: Uninterrupted) -> None:
    attempt = Attempt(Options(folder=tmp_path, wait_at=3))
    attempt.wait_for_file(WAITING)
    attempt.send(signal.SIGKILL)
    assert attempt.wait() == -signal.SIGKILL
    attempt.wait_for_workers()
    finish(Options(folder=tmp_path))
    assert_same_outcome(tmp_path, uninterrupted(), began=[0, 2])
