"""A run that is asked to leave saves itself first, and says by its exit status that it wants to be started again."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.crash.attempts import LIMIT_SECONDS, Attempt, assert_same_outcome, finish
from tests.crash.conftest import Uninterrupted
from tests.crash.program import ASKED, WAITING, Options
from tests.forking.starting import start
from treadle.checkpoint import CheckpointStore, Policy
from treadle.runs.preemption import EXIT_CODE

pytestmark = pytest.mark.slow


def newest(folder: Path) -> int | None:
    return CheckpointStore(folder / "checkpoints", Policy()).newest_good()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
@pytest.mark.parametrize("group", [False, True], ids=["process", "workers too"])
def test_a_run_asked_to_leave_saves_itself_and_exits_with_75(
    number: signal.Signals, group: bool, tmp_path: Path, uninterrupted: Uninterrupted
) -> None:
    # Saved after each epoch only, so that another step was saved because of the signal.
    attempt = Attempt(Options(folder=tmp_path, wait_at=3, save_every="1 epoch"))
    attempt.wait_for_file(WAITING)
    attempt.send(number, group=group)
    assert attempt.wait() == EXIT_CODE == 75, attempt.output
    assert newest(tmp_path) == 3
    assert f"saved step 3 in {tmp_path}; start the same command to resume" in attempt.output
    attempt.wait_for_workers()
    finish(Options(folder=tmp_path, save_every="1 epoch"))
    assert_same_outcome(tmp_path, uninterrupted(), began=[3])


@pytest.mark.parametrize("group", [False, True], ids=["process", "workers too"])
def test_an_interrupted_program_saves_itself_and_ends_like_any_other(
    group: bool, tmp_path: Path, uninterrupted: Uninterrupted
) -> None:
    options = (str(tmp_path), "--wait-at", "3", "--save-every", "1 epoch")
    with (tmp_path / "output.txt").open("w") as output:
        running = start("-m", "tests.crash.program", *options, stdout=output, new_session=True)
        while running.poll() is None and not (tmp_path / WAITING).exists():
            time.sleep(0.01)
        # A terminal sends it to all processes of the program.
        (os.killpg if group else os.kill)(running.pid, signal.SIGINT)
        assert running.wait(LIMIT_SECONDS) == -signal.SIGINT
    printed = (tmp_path / "output.txt").read_text()
    assert "KeyboardInterrupt: saved step 3" in printed
    assert printed.count("Traceback") == 1
    assert newest(tmp_path) == 3
    finish(Options(folder=tmp_path, save_every="1 epoch"))
    assert_same_outcome(tmp_path, uninterrupted(), began=[3])


def test_a_second_interrupt_leaves_in_the_middle_of_a_step(tmp_path: Path, uninterrupted: Uninterrupted) -> None:
    attempt = Attempt(Options(folder=tmp_path, wait_at=3, save_every="1 epoch"))
    attempt.wait_for_file(WAITING)
    attempt.send(signal.SIGINT, group=True)
    attempt.wait_for_file(ASKED)
    attempt.send(signal.SIGINT, group=True)
    assert attempt.wait() == 1
    assert "KeyboardInterrupt" in attempt.output
    assert newest(tmp_path) == 0
    attempt.wait_for_workers()
    finish(Options(folder=tmp_path))
    assert_same_outcome(tmp_path, uninterrupted(), began=[0])
