"""A training that is killed by SIGKILL, several times over, ends in the bits of one that was not."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interrupting import assert_same_bits
from treadle.checkpoint import read_file

ROOT = Path(__file__).parents[3]


def start(folder: Path, model: str, step: int = 0) -> int:
    """Run the program until it ends or is killed; return its exit status."""
    folder.mkdir(exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    command = [sys.executable, "-m", "tests.recsys.trainer.killed_program", str(folder), model, str(step)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


@pytest.mark.slow
@pytest.mark.parametrize(("model", "kills"), [("BPR", [2, 5]), ("MultiVAE", [4, 6]), ("RecVAE", [5, 16])])
def test_a_killed_training_ends_in_the_bits_of_one_that_was_not(tmp_path: Path, model: str, kills: list[int]) -> None:
    assert start(tmp_path / "whole", model) == 0
    for step in kills:
        assert start(tmp_path / "killed", model, step) == -signal.SIGKILL
    assert start(tmp_path / "killed", model) == 0
    assert_same_bits(read_file(tmp_path / "killed" / "end"), read_file(tmp_path / "whole" / "end"))
