"""Several processes of which one is killed are restarted by torchrun and end like processes never disturbed."""

import random
from pathlib import Path

import pytest

from tests.crash.attempts import assert_same_outcome
from tests.crash.groups import SHOWN, Group, finish
from tests.crash.program import WAITING
from tests.interrupting import metric_lines
from treadle.checkpoint import CheckpointStore, Policy

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of two processes that nobody disturbed: four updates an epoch, twelve in all."""
    folder = tmp_path_factory.mktemp("whole")
    finish(Group(folder))
    return folder


@pytest.mark.parametrize("storage", ["folder", "file"])
def test_two_processes_of_which_one_is_killed_end_like_two_undisturbed_ones(
    storage: str, tmp_path: Path, whole: Path
) -> None:
    # Odd steps kill the second process, even ones the first; the checkpoint of step 6 is just being written at 7.
    kills = (3, 6, 7)
    arguments = ("--storage", storage, "--kill-at-steps", *map(str, kills))
    group = finish(Group(tmp_path, *arguments, restarts=len(kills)))
    assert all((tmp_path / f"killed_at_{step}").exists() for step in kills)
    assert group.launcher_printed.count("exitcode: -9") == len(kills)
    assert_same_outcome(tmp_path, whole, began=[4, 6])
    assert [line["step"] for line in metric_lines(tmp_path)] == [4, 5, 8, 10, 12]


def test_processes_that_share_the_weights_and_are_killed_at_random_end_like_undisturbed_ones(tmp_path: Path) -> None:
    kills = sorted(random.Random(20).sample(range(2, 12), 2))
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    finish(Group(whole, "--shard", "2"))
    group = finish(Group(killed, "--shard", "2", "--kill-at-steps", *map(str, kills), restarts=len(kills)))
    assert group.launcher_printed.count("exitcode: -9") == len(kills)
    # Saved at every second step, of which the last may still be written.
    last = (kills[-1] - 1) // 2 * 2
    assert_same_outcome(killed, whole, began=[last - 2, last])


def test_a_process_killed_while_they_save_leaves_no_half_of_a_checkpoint(tmp_path: Path, whole: Path) -> None:
    # The second within its part of the first checkpoint, the first when all parts of that are there, the second within
    # its part of a later one, and the first within its part of one that comes after a resume.
    places = ("1:5", "0:17", "1:14", "0:45")
    group = finish(Group(tmp_path, "--save-every", "1 step", "--kill-ranks-at", *places, restarts=len(places)))
    assert len(list(tmp_path.glob("killed_at_operation_*"))) == len(places)
    assert group.launcher_printed.count("exitcode: -9") == len(places)
    assert_same_outcome(tmp_path, whole, began=range(1, 12))
    checkpoints = tmp_path / "checkpoints"
    assert [path.name for path in checkpoints.iterdir() if path.name.startswith(".")] == []
    assert CheckpointStore(checkpoints, Policy()).newest_good() == 12


def test_processes_asked_to_leave_save_themselves_together(tmp_path: Path, whole: Path) -> None:
    group = Group(tmp_path, "--wait-at", "9", "--save-every", "1 epoch")
    group.wait_for_file(WAITING)
    group.terminate()
    assert group.wait() != 0
    # They ask each other every ten steps, and in between at the end of an epoch.
    message = f"saved step 10 in {tmp_path}; start the same command to resume"
    assert group.printed.count(message) == 1, group.printed[-SHOWN:]
    finish(Group(tmp_path, "--save-every", "1 epoch"))
    assert_same_outcome(tmp_path, whole, began=[10])
