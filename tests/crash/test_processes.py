"""Several processes of which one is killed are restarted by torchrun and end like processes never disturbed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.crash.attempts import LIMIT_SECONDS, assert_same_outcome, metrics
from tests.crash.program import WAITING
from treadle.checkpoint import CheckpointStore, Policy

pytestmark = pytest.mark.slow

SHOWN = 6000


class Group:
    """Two processes of the program, started by torchrun and started again whenever one of them dies.

    Args:
        folder: The folder of the run.
        arguments: What else the program is told.
        restarts: How often they may be started again.
    """

    def __init__(self, folder: Path, *arguments: str, restarts: int = 0) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._limit = LIMIT_SECONDS * (1 + restarts)
        # A file for each rank: what several print into one is interleaved.
        files = ["--redirects=3", f"--log-dir={folder / 'logs'}"]
        launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", f"--max-restarts={restarts}", *files]
        program = ["-m", "tests.crash.program", str(folder), "--workers=0", *arguments]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        with (folder / "output.txt").open("w") as output:
            self._running = subprocess.Popen(
                [sys.executable, "-m", *launcher, *program],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment | {"OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )

    def wait(self) -> int:
        """Wait for the end, and return the exit status of torchrun."""
        try:
            return self._running.wait(self._limit)
        except subprocess.TimeoutExpired:
            os.killpg(self._running.pid, signal.SIGKILL)
            self._running.wait()
            raise AssertionError(f"the processes hung:\n{self.printed[-SHOWN:]}") from None

    def wait_for_file(self, name: str) -> None:
        """Wait until the program has made a file in its folder."""
        while not (self._folder / name).exists():
            assert self._running.poll() is None, self.printed[-SHOWN:]
            time.sleep(0.01)

    def terminate(self) -> None:
        """Ask torchrun to end, as a scheduler does which wants the machine back."""
        self._running.terminate()

    @property
    def launcher_printed(self) -> str:
        """What torchrun printed itself."""
        return (self._folder / "output.txt").read_text()

    @property
    def printed(self) -> str:
        """All that was printed, in all starts: by each rank, and by torchrun."""
        ranks = sorted((self._folder / "logs").glob("*/attempt_*/*/std*.log"))
        return "".join(file.read_text() for file in ranks) + self.launcher_printed


def finish(group: Group) -> Group:
    """Wait for the end, which must be a good one."""
    assert group.wait() == 0, group.printed[-SHOWN:]
    return group


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of two processes that nobody disturbed: four updates an epoch, twelve in all."""
    folder = tmp_path_factory.mktemp("whole")
    finish(Group(folder))
    return folder


def test_two_processes_of_which_one_is_killed_end_like_two_undisturbed_ones(tmp_path: Path, whole: Path) -> None:
    # Odd steps kill the second process, even ones the first; the checkpoint of step 6 is just being written at 7.
    kills = (3, 6, 7, 10)
    group = finish(Group(tmp_path, "--kill-at-steps", *map(str, kills), restarts=len(kills)))
    assert all((tmp_path / f"killed_at_{step}").exists() for step in kills)
    assert group.launcher_printed.count("exitcode: -9") == len(kills)
    assert_same_outcome(tmp_path, whole)
    assert [line["step"] for line in metrics(tmp_path)] == [4, 5, 8, 10, 12]


@pytest.mark.parametrize(
    ("rank", "operation"),
    [
        pytest.param(1, 5, id="the second within its part of the first checkpoint"),
        pytest.param(1, 14, id="the second within its part of a later one"),
        pytest.param(0, 17, id="the first when all parts of the first one are there"),
        pytest.param(0, 45, id="the first within its part of a later one"),
    ],
)
def test_a_process_killed_while_they_save_leaves_no_half_of_a_checkpoint(
    rank: int, operation: int, tmp_path: Path, whole: Path
) -> None:
    where = ["--kill-rank", str(rank), "--kill-at-operation", str(operation)]
    group = finish(Group(tmp_path, "--save-every", "1 step", *where, restarts=1))
    assert (tmp_path / f"killed_at_operation_{operation}").exists()
    assert group.launcher_printed.count("exitcode: -9") == 1
    assert_same_outcome(tmp_path, whole)
    checkpoints = tmp_path / "checkpoints"
    assert [path.name for path in checkpoints.iterdir() if path.name.startswith(".")] == []
    assert CheckpointStore(checkpoints, Policy()).newest_good() == 12


def test_processes_asked_to_leave_save_themselves_together(tmp_path: Path, whole: Path) -> None:
    group = Group(tmp_path, "--wait-at", "9", "--save-every", "1 epoch")
    group.wait_for_file(WAITING)
    group.terminate()
    assert group.wait() != 0
    # They ask each other every ten steps, and in between at the end of an epoch.
    message = f"saved step 10 in {tmp_path}; start the same command to go on"
    assert group.printed.count(message) == 1, group.printed[-SHOWN:]
    finish(Group(tmp_path, "--save-every", "1 epoch"))
    assert_same_outcome(tmp_path, whole)
