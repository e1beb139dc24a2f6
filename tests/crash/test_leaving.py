"""A run that is asked to leave saves itself first, and says by its exit status that it wants to be started again."""

import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.crash.attempts import Attempt, assert_same_outcome, finish, python_command
from tests.crash.conftest import Uninterrupted
from tests.crash.program import Options
from treadle.checkpoint import CheckpointStore, Policy
from treadle.leaving import EXIT_CODE

pytestmark = pytest.mark.slow


def started(folder: Path) -> bool:
    return (folder / "checkpoints" / "last").exists()


def newest(folder: Path) -> int | None:
    return CheckpointStore(folder / "checkpoints", Policy()).newest_good()


@pytest.mark.xfail(reason="a signal to the workers as well sometimes ends the run before it could save itself")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
@pytest.mark.parametrize("group", [False, True], ids=["process", "workers too"])
def test_a_run_asked_to_leave_saves_itself_and_exits_with_75(
    number: signal.Signals, group: bool, tmp_path: Path, uninterrupted: Uninterrupted
) -> None:
    # Saved after each epoch only, so that any other step was saved because of the signal.
    attempt = Attempt(Options(folder=tmp_path, pause=0.05, save_every="1 epoch"))
    attempt.wait_until(lambda: started(tmp_path))
    time.sleep(0.08)
    attempt.send(number, group=group)
    assert attempt.wait() == EXIT_CODE == 75, attempt.output
    assert newest(tmp_path) not in (None, 7, 14, 21)
    assert f"saved step {newest(tmp_path)} in {tmp_path}; start the same command to go on" in attempt.output
    finish(Options(folder=tmp_path, save_every="1 epoch"))
    assert_same_outcome(tmp_path, uninterrupted())


def test_an_interrupted_program_saves_itself_and_ends_like_any_other(
    tmp_path: Path, uninterrupted: Uninterrupted
) -> None:
    command = python_command(str(tmp_path), "--pause", "0.05", "--save-every", "1 epoch")
    with (tmp_path / "output.txt").open("w") as output:
        running = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        while running.poll() is None and not started(tmp_path):
            time.sleep(0.01)
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == -signal.SIGINT
    assert "KeyboardInterrupt: saved step" in (tmp_path / "output.txt").read_text()
    assert newest(tmp_path) not in (None, 7, 14, 21)
    finish(Options(folder=tmp_path, save_every="1 epoch"))
    assert_same_outcome(tmp_path, uninterrupted())


def test_a_second_interrupt_leaves_in_the_middle_of_a_step(tmp_path: Path, uninterrupted: Uninterrupted) -> None:
    # Each update takes longer than the test waits for a process: only the second interrupt can end it.
    attempt = Attempt(Options(folder=tmp_path, pause=10_000, save_every="1 step", workers=0))
    attempt.wait_until(lambda: (tmp_path / "manifest.json").exists())
    while attempt.running():
        attempt.send(signal.SIGINT)
        time.sleep(0.05)
    assert attempt.wait() == 1
    assert "KeyboardInterrupt" in attempt.output
    assert not newest(tmp_path)
    finish(Options(folder=tmp_path))
    assert_same_outcome(tmp_path, uninterrupted())
