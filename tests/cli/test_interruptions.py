"""Real processes: killed or asked to leave, and started again by the same command, they end as if never stopped."""

import os
import re
import signal
import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.processes import Command, assert_same_end, has_saved
from tests.cli.project import make_project
from tests.forking.starting import run
from tests.interrupting import starts_of
from treadle.files.ownership import COMMENT, is_own_file
from treadle.runs.status import is_locked, read_status

pytestmark = pytest.mark.slow

TRAIN = ("train", "configs/small.py", "train.train_iter=32", "+trainer=mine.parts.Mortal")
TWO = (*TRAIN, "--nproc", "2")
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


def signalled(folder: Path, number: signal.Signals, *arguments: str, after: int) -> Command:
    """Start a command that waits in the iteration after a checkpoint, and send it a signal there."""
    waiting = folder / f"wait_at_{after + 1}"
    waiting.touch()
    command = Command(folder, *arguments)
    saved, waits = has_saved(folder / RUN, after), (folder / f"waits_at_{after + 1}").exists
    command.signal_when(number, lambda: waits() and saved())
    return command


def state_of(run: Path) -> str | None:
    status = read_status(run)
    return None if status is None else status.state


@dataclass(frozen=True)
class Interrupted:
    """A run that was stopped in different ways, each time started again by the same command, and came to its end.

    Attributes:
        run: Its folder.
        printed: What each start printed, by how it was stopped.
        states: What the folder said of the run after each stop.
    """

    run: Path
    printed: dict[str, str]
    states: dict[str, str | None]


def interrupt(folder: Path, command: Sequence[str], stops: dict[str, tuple[signal.Signals, int, int]]) -> Interrupted:
    """Start a command, stop it by each signal after each checkpoint, with each status, and let it finish."""
    printed, states = {}, {}
    for name, (number, after, status) in stops.items():
        printed[name] = signalled(folder, number, *command, after=after).wait(status)
        states[name] = state_of(folder / RUN)
    printed["finished"] = Command(folder, *command).wait(0)
    return Interrupted(folder / RUN, printed, states)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Interrupted:
    """A run of one process that was killed, asked to leave, and interrupted."""
    folder = make_project(tmp_path_factory.mktemp("alone") / "project")
    killed, asked = (signal.SIGKILL, 8, -signal.SIGKILL), (signal.SIGTERM, 16, 75)
    return interrupt(folder, TRAIN, {"killed": killed, "asked": asked, "interrupted": (signal.SIGINT, 24, 130)})


@pytest.fixture(scope="module")
def on_two(tmp_path_factory: pytest.TempPathFactory) -> Interrupted:
    """A run of two processes, of which one died, whose launcher was killed, and which was asked to leave."""
    folder = make_project(tmp_path_factory.mktemp("on_two") / "project")
    # The second process dies in the tenth iteration of the first start.
    killed, asked = (signal.SIGKILL, 16, -signal.SIGKILL), (signal.SIGTERM, 24, 75)
    return interrupt(folder, TWO, {"killed": killed, "asked": asked})


def test_a_run_that_is_stopped_in_any_way_and_started_by_the_same_command_ends_as_if_never_stopped(
    alone: Interrupted, whole: Path
) -> None:
    assert "runs/small: resuming from iteration 8 of 32" in alone.printed["asked"]
    for name, before in (("interrupted", "asked"), ("finished", "interrupted")):
        (saved,) = set(re.findall(r"saved step (\d+)", alone.printed[before]))
        assert f"runs/small: resuming from iteration {saved} of 32" in alone.printed[name]
    assert starts_of(alone.run)[1] == 8
    assert_same_end(alone.run, whole)
    # The mark of the user is a checksum over the rest, the iteration that the run was last started at among it.
    config, expected = ((run / "config.yaml").read_text().partition(COMMENT) for run in (alone.run, whole))
    assert re.sub(r"start_iter: \d+", "start_iter: 0", config[0]) == expected[0]
    assert config[1] == expected[1] == COMMENT
    assert is_own_file(alone.run / "config.yaml")


def test_a_run_that_was_killed_is_known_as_killed(alone: Interrupted) -> None:
    assert alone.states["killed"] == "killed"


def test_a_run_that_was_asked_to_leave_says_how_to_go_on(alone: Interrupted) -> None:
    assert "; start the same command to resume" in alone.printed["asked"]
    assert alone.states["asked"] == "stopped"


def test_an_interrupted_run_saves_itself_and_shows_no_traceback(alone: Interrupted) -> None:
    assert "treadle train: saved step" in alone.printed["interrupted"]
    assert "Traceback" not in alone.printed["interrupted"]


def test_a_signal_before_training_begins_exits_with_75_too(folder: Path) -> None:
    (folder / "configs" / "slow.py").write_text(
        "import time\nfrom pathlib import Path\nfrom .small import *\nPath('reading').touch()\ntime.sleep(60)\n"
    )
    command = Command(folder, "train", "configs/slow.py")
    command.signal_when(signal.SIGTERM, (folder / "reading").exists)
    said = " ".join(command.wait(75).split())
    assert "asked to leave while nothing was under way; start the same command to resume" in said


def test_two_processes_that_are_stopped_in_any_way_end_as_if_never_stopped(
    on_two: Interrupted, whole_on_two: Path
) -> None:
    for name in ("asked", "finished"):
        assert "runs/small: resuming from iteration" in on_two.printed[name]
    assert_same_end(on_two.run, whole_on_two)


def test_two_processes_whose_launcher_is_killed_die_with_it(on_two: Interrupted) -> None:
    # Else the next start would have been refused.
    assert "runs/small: resuming from iteration" in on_two.printed["asked"]
    assert not is_locked(on_two.run)


def test_two_processes_that_are_asked_to_leave_save_together(on_two: Interrupted) -> None:
    assert on_two.printed["asked"].count("treadle train: saved step") == 1


def test_a_process_that_dies_has_all_started_again(on_two: Interrupted) -> None:
    assert (on_two.run / "died").exists()
    told = "process 1 was killed by SIGKILL; starting all processes again (3 of 3 restarts are left)"
    assert told in on_two.printed["killed"]
    assert "Traceback" not in on_two.printed["killed"]


def test_a_process_that_is_ended_because_another_one_died_does_not_count_as_having_left(folder: Path) -> None:
    command = Command(
        folder, *TRAIN[:2], "train.train_iter=4", "dataloader.train._target_=mine.parts.Unlucky", "--nproc", "2"
    )
    output = command.wait(0)
    assert "process 1 was killed by SIGKILL; starting all processes again" in output
    assert "runs/small: finished after 4 of 4 iterations" in output


def unused_port() -> int:
    """Return a port that nobody listens at, below those that the system gives to others meanwhile."""
    for port in range(20_000 + os.getpid() % 10_000, 32_768):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("localhost", port))
            return port
    raise AssertionError("every port is taken")


def test_machines_that_meet_start_again_together_when_a_process_of_one_dies(folder: Path, whole_on_two: Path) -> None:
    port = unused_port()
    options = (*TRAIN, "--nnodes", "2", "--master-addr", "localhost", "--master-port", str(port))
    commands = [Command(folder, *options, "--node-rank", str(rank), output=f"{rank}.txt") for rank in range(2)]
    first, second = (command.wait(0) for command in commands)
    assert first.splitlines()[-1].startswith("runs/small: finished after 32 of 32 iterations")
    assert "process 1 was killed by SIGKILL; starting all processes again (3 of 3 restarts are left)" in second
    assert_same_end(folder / RUN, whole_on_two)


def test_a_task_of_slurm_on_each_machine_starts_the_processes_there(folder: Path) -> None:
    job = {
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
        "SLURM_STEP_NODELIST": "localhost,localhost",
    }
    commands = []
    for rank in map(str, range(2)):
        own = {"SLURM_PROCID": rank, "SLURM_LOCALID": "0", "SLURM_NODEID": rank}
        options = (*TRAIN[:2], "train.train_iter=4", "--nproc", "1")
        commands.append(Command(folder, *options, output=f"{rank}.txt", variables=job | own))
    said = "".join(command.wait(0) for command in commands)
    assert said.count("runs/small: finished after 4 of 4 iterations") == 1
    status = read_status(folder / RUN)
    assert status is not None
    assert (status.processes, status.processes_here) == (2, 1)


def test_a_mistake_is_told_once_for_all_processes_and_not_tried_again(folder: Path) -> None:
    output = Command(folder, *TWO, "~model.width").wait(1)
    assert output.count("calling Network failed: TypeError") == 1
    assert "starting all processes again" not in output
    assert "Traceback" not in output


def test_an_error_in_a_program_is_shown_once_for_each_start(folder: Path) -> None:
    arguments = ("model._target_=mine.parts.Faulty", "--max-restarts", "1")
    output = Command(folder, *TWO, *arguments).wait(1)
    # The end of a traceback; the log names the error too, behind its time.
    assert output.count("\nRuntimeError: mat1 and mat2 shapes cannot be multiplied (8x2 and 3x8)\nat step 1") == 2
    assert "starting all processes again (1 of 1 restarts are left)" in output
    assert output.endswith("failed; no restart is left\n")


def test_two_processes_evaluate_and_go_on_as_the_run_was(folder: Path, whole_on_two: Path) -> None:
    (folder / "runs").mkdir()
    subprocess.run(["cp", "-r", str(whole_on_two), str(folder / RUN)], check=True)
    output = Command(folder, "resume", "runs/small", "train.train_iter=34").wait(0)
    assert "runs/small: finished after 34 of 34 iterations" in output
    status = read_status(folder / RUN)
    assert status is not None
    assert status.processes == 2
    alone, both = (Command(folder, "eval", "runs/small", *more).wait(0) for more in ((), ("--nproc", "2")))
    assert alone == both


def test_a_command_works_under_torchrun(folder: Path, whole_on_two: Path) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = run(*launcher, "-m", "treadle.cli", *TRAIN, cwd=spare(folder), env=environment, launches=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("runs/small: finished after 32 of 32 iterations") == 1
    assert_same_end(folder / RUN, whole_on_two)
