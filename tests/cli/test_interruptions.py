"""Real processes: killed or asked to leave, and started again by the same command, they end as if never stopped."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.processes import Command, assert_same_end, has_saved
from tests.cli.project import make_project
from treadle.run_status import is_occupied, read_status

pytestmark = pytest.mark.slow

# 40 iterations of at least 32 ms: there is time to be interrupted.
TRAIN = ("train", "configs/small.py", "train.train_iter=40", "+dataloader.train.pause=0.004")
TWO = (*TRAIN, "--nproc", "2", "+trainer=mine.parts.Mortal")
RUN = Path("runs", "small")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody interrupted."""
    folder = make_project(tmp_path_factory.mktemp("whole") / "project")
    Command(folder, *TRAIN).wait(0)
    return folder / RUN


@pytest.fixture(scope="module")
def whole_on_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on two processes that nobody interrupted."""
    folder = spare(make_project(tmp_path_factory.mktemp("whole_on_two") / "project"))
    Command(folder, *TWO).wait(0)
    return folder / RUN


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a project in which nothing was run yet."""
    return make_project(tmp_path / "project")


def spare(folder: Path) -> Path:
    """Have no process of a run killed by the trainer, as if one had been before."""
    (folder / RUN).mkdir(parents=True)
    (folder / RUN / "died").touch()
    return folder


def state_of(run: Path) -> str | None:
    status = read_status(run)
    return None if status is None else status.state


def test_a_run_that_was_killed_and_started_again_by_the_same_command_line_ends_as_if_never_killed(
    folder: Path, whole: Path
) -> None:
    for step in (8, 24):
        command = Command(folder, *TRAIN)
        command.signal_when(signal.SIGKILL, has_saved(folder / RUN, step))
        command.wait(-signal.SIGKILL)
        assert state_of(folder / RUN) == "killed"
    assert "runs/small: going on from iteration" in Command(folder, *TRAIN).wait(0)
    assert_same_end(folder / RUN, whole)
    assert (folder / RUN / "config.yaml").read_text().replace("start_iter: 24", "start_iter: 0") == (
        whole / "config.yaml"
    ).read_text()


def test_a_run_that_was_asked_to_leave_exits_with_75_and_the_same_command_ends_as_if_never_asked(
    folder: Path, whole: Path
) -> None:
    command = Command(folder, *TRAIN)
    command.signal_when(signal.SIGTERM, has_saved(folder / RUN, 8))
    assert "; start the same command to go on" in command.wait(75)
    assert state_of(folder / RUN) == "stopped"
    Command(folder, *TRAIN).wait(0)
    assert_same_end(folder / RUN, whole, left=True)


def test_a_signal_before_training_begins_exits_with_75_too(folder: Path) -> None:
    (folder / "configs" / "slow.py").write_text(
        "import time\nfrom pathlib import Path\nfrom .small import *\nPath('reading').touch()\ntime.sleep(60)\n"
    )
    command = Command(folder, "train", "configs/slow.py")
    command.signal_when(signal.SIGTERM, (folder / "reading").exists)
    said = " ".join(command.wait(75).split())
    assert "asked to leave while nothing was under way; start the same command to go on" in said


def test_an_interrupt_saves_and_exits_with_130(folder: Path, whole: Path) -> None:
    command = Command(folder, *TRAIN)
    command.signal_when(signal.SIGINT, has_saved(folder / RUN, 8))
    output = command.wait(130)
    assert "treadle train: saved step" in output
    assert "Traceback" not in output
    Command(folder, *TRAIN).wait(0)
    assert_same_end(folder / RUN, whole, left=True)


def test_two_processes_whose_launcher_is_killed_die_with_it_and_the_same_command_ends_as_if_never_killed(
    folder: Path, whole_on_two: Path
) -> None:
    command = Command(spare(folder), *TWO)
    command.signal_when(signal.SIGKILL, has_saved(folder / RUN, 8))
    command.wait(-signal.SIGKILL)
    output = Command(folder, *TWO).wait(0)
    assert "runs/small: going on from iteration" in output
    assert_same_end(folder / RUN, whole_on_two)
    assert not is_occupied(folder / RUN)


def test_two_processes_that_are_asked_to_leave_save_together_and_exit_with_75(folder: Path, whole_on_two: Path) -> None:
    command = Command(spare(folder), *TWO)
    command.signal_when(signal.SIGTERM, has_saved(folder / RUN, 8))
    output = command.wait(75)
    assert output.count("treadle train: saved step") == 1
    Command(folder, *TWO).wait(0)
    assert_same_end(folder / RUN, whole_on_two, left=True)


def test_a_process_that_dies_has_all_started_again_and_the_run_ends_as_if_none_had_died(
    folder: Path, whole_on_two: Path
) -> None:
    output = Command(folder, *TWO).wait(0)
    assert (folder / RUN / "died").exists()
    told = "process 1 was killed by SIGKILL; starting all processes again (3 of 3 restarts are left)"
    assert told in output
    assert "Traceback" not in output
    assert_same_end(folder / RUN, whole_on_two)


def test_a_process_that_is_ended_because_another_one_died_does_not_count_as_having_left(folder: Path) -> None:
    command = Command(
        folder, *TRAIN[:2], "train.train_iter=4", "dataloader.train._target_=mine.parts.Unlucky", *TWO[4:6]
    )
    output = command.wait(0)
    assert "process 1 was killed by SIGKILL; starting all processes again" in output
    assert "runs/small: finished after 4 of 4 iterations" in output


def test_machines_meet_at_an_endpoint(folder: Path, whole_on_two: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    (folder / "other").mkdir()
    options = (*TRAIN, TWO[-1], "--nnodes", "2", "--rdzv-endpoint", f"localhost:{port}")
    first = Command(spare(folder), *options)
    second = Command(folder, *options, output="other/output.txt")
    assert sorted([*first.wait(0).splitlines()[-1:], *second.wait(0).splitlines()[-1:]])[-1].startswith(
        "runs/small: finished after 40 of 40 iterations"
    )
    assert_same_end(folder / RUN, whole_on_two)


def test_a_mistake_is_told_once_for_all_processes_and_not_tried_again(folder: Path) -> None:
    output = Command(folder, *TWO, "~model.width").wait(1)
    assert output.count("calling Network failed: TypeError") == 1
    assert "starting all processes again" not in output
    assert "Traceback" not in output


def test_an_error_in_a_program_is_shown_once_for_each_start(folder: Path) -> None:
    arguments = ("model._target_=mine.parts.Faulty", "--max-restarts", "1")
    output = Command(folder, *TWO, *arguments).wait(1)
    assert output.count("RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x2 and 3x8)\nat step 1") == 2
    assert "starting all processes again (1 of 1 restarts are left)" in output
    assert output.endswith("failed; no restart is left\n")


def test_two_processes_evaluate_and_go_on_as_the_run_was(folder: Path, whole_on_two: Path) -> None:
    (folder / "runs").mkdir()
    subprocess.run(["cp", "-r", str(whole_on_two), str(folder / RUN)], check=True)
    output = Command(folder, "resume", "runs/small", "train.train_iter=42").wait(0)
    assert "runs/small: finished after 42 of 42 iterations" in output
    status = read_status(folder / RUN)
    assert status is not None
    assert status.processes == 2
    alone, both = (Command(folder, "eval", "runs/small", *more).wait(0) for more in ((), ("--nproc", "2")))
    assert alone == both


def test_a_command_works_under_torchrun(folder: Path, whole_on_two: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*launcher, "-m", "treadle.cli", *TRAIN, TWO[-1]]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=spare(folder), env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("runs/small: finished after 40 of 40 iterations") == 1
    assert_same_end(folder / RUN, whole_on_two)
