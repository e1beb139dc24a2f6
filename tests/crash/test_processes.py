"""Several processes of which one is killed are restarted by torchrun and end like processes never disturbed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash.attempts import LIMIT_SECONDS, assert_same_outcome, metrics

pytestmark = pytest.mark.slow


def torchrun(folder: Path, *arguments: str) -> str:
    """Run the program on two processes, restarted as often as one of them dies, and return what was printed."""
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=2"]
    command = [sys.executable, "-m", *launcher, "-m", "tests.crash.program", str(folder), "--workers=0", *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    folder.mkdir()
    with (folder / "output.txt").open("w") as output:
        running = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment | {"OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        try:
            code = running.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGTERM)
            code = running.wait()
    printed = (folder / "output.txt").read_text()
    assert code == 0, printed[-6000:]
    return printed


@pytest.mark.xfail(reason="the group restarted by torchrun does not always come to its end yet")
def test_two_processes_of_which_one_is_killed_end_like_two_undisturbed_ones(tmp_path: Path) -> None:
    # Together they make four updates an epoch: the second process is killed in the first, the first in the last.
    torchrun(tmp_path / "whole")
    printed = torchrun(tmp_path / "killed", "--kill-at-steps", "3", "10")
    assert (tmp_path / "killed" / "killed_at_3").exists()
    assert (tmp_path / "killed" / "killed_at_10").exists()
    assert printed.count("exitcode: -9") == 2
    assert_same_outcome(tmp_path / "killed", tmp_path / "whole")
    assert [line["step"] for line in metrics(tmp_path / "killed")] == [4, 5, 8, 10, 12]
