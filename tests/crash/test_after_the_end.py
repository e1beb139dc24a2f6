"""A run that is over stays over, whenever it is started again; and what a killed one leaves lying is cleared."""

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from tests.crash.attempts import Attempt, assert_same_outcome, finish, outcome
from tests.crash.conftest import Uninterrupted
from tests.crash.program import Options
from tests.storages import KINDS, storage_in

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("patience", [pytest.param(50, id="all epochs done"), pytest.param(1, id="stopped early")])
def test_a_run_killed_between_its_last_checkpoint_and_its_end_is_over_when_started_again(
    patience: int, tmp_path: Path, uninterrupted: Uninterrupted
) -> None:
    options = Options(folder=tmp_path, patience=patience)
    assert Attempt(replace(options, kill_after_finish=True)).wait() == -signal.SIGKILL
    finish(options)
    whole = uninterrupted(patience=patience)
    assert outcome(whole)["epochs"] == (3 if patience == 50 else 2)
    assert_same_outcome(tmp_path, whole, began=[outcome(whole)["steps"]])


@pytest.mark.parametrize("storage", KINDS)
def test_a_finished_run_started_again_changes_nothing(
    storage: str, tmp_path: Path, uninterrupted: Uninterrupted
) -> None:
    options = Options(folder=tmp_path, storage=storage, workers=0)
    finish(options)
    finish(options)
    assert_same_outcome(tmp_path, uninterrupted(), began=[21])


def test_nothing_half_written_remains_and_the_pointers_name_whole_checkpoints(tmp_path: Path) -> None:
    options = Options(folder=tmp_path, workers=0, kill_at_steps=[2, 6])
    for operation in (8, 16, 24, 32):
        assert Attempt(replace(options, kill_at_operation=operation, kill_at_steps=[])).wait() == -signal.SIGKILL
    for _ in options.kill_at_steps:
        assert Attempt(options).wait() == -signal.SIGKILL
    finish(options)
    checkpoints = tmp_path / "checkpoints"
    # The best by eval_loss_epoch is that of the first epoch; two more are the last ones.
    assert sorted(path.name for path in checkpoints.iterdir()) == [
        "best",
        "last",
        "step_00000007",
        "step_00000020",
        "step_00000021",
    ]
    assert (checkpoints / "last").read_text() == "step_00000021"
    assert (checkpoints / "best").read_text() == "step_00000007"
    # The file that the lock is taken on stays, empty: it is no leftover of a write.
    assert [path.name for path in tmp_path.rglob(".*")] == [".lock"]
    assert (tmp_path / ".lock").read_bytes() == b""


@pytest.mark.parametrize("storage", ["file", "sqlite"])
def test_nothing_half_written_remains_where_nothing_can_be_renamed(storage: str, tmp_path: Path) -> None:
    options = Options(folder=tmp_path, storage=storage, workers=0, kill_at_steps=[15, 19])
    for operation in (20, 40, 60, 80):
        assert Attempt(replace(options, kill_at_operation=operation, kill_at_steps=[])).wait() == -signal.SIGKILL
    for _ in options.kill_at_steps:
        assert Attempt(options).wait() == -signal.SIGKILL
    finish(options)
    kept = storage_in(storage, tmp_path)
    checkpoints = sorted(kept.files("checkpoints"))
    folders = [f"checkpoints/step_{step:08d}" for step in (7, 20, 21)]
    assert [name for name in checkpoints if name.count("/") < 3] == [
        "checkpoints/best",
        "checkpoints/last",
        *(f"{folder}/manifest.json" for folder in folders),
    ]
    # One room for each, with the two files of the one rank.
    assert len(checkpoints) == 2 + 3 * 3
    assert (kept.read("checkpoints/last"), kept.read("checkpoints/best")) == (b"step_00000021", b"step_00000007")
    assert set(kept.files()) - set(checkpoints) == {
        *("config.yaml", "execution.json", "heartbeat.json", "log.txt", "manifest.json"),
        *("metrics.jsonl", "status.json"),
    }
    # The room for files that are being written stays, empty.
    assert [path for path in tmp_path.rglob(".*") if path.is_file() or any(path.iterdir())] == []
