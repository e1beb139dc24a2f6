"""The program in `examples/engine` trains, goes on, evaluates, and is run from the command line as it says."""

import re
from pathlib import Path

import pytest

from tests.conftest import RunExample

PROGRAM = "engine/train_net.py"


@pytest.mark.slow
def test_the_program_trains_goes_on_and_evaluates(tmp_path: Path, run_example: RunExample) -> None:
    options = ["train.dist.device_type=cpu", "train.checkpointer.period=50", "train.evaluation.eval_period=50"]
    first = run_example(PROGRAM, *options, "train.train_iter=100")
    assert (tmp_path / "runs" / "rings" / "metrics.json").exists()
    again = run_example(PROGRAM, "--resume", *options, "train.train_iter=150")
    evaluated = run_example(PROGRAM, "--resume", "--eval-only", *options, "train.train_iter=150")
    accuracies = [float(re.findall(r"held-out points: ([\d.]+)%", text)[0]) for text in (first, again, evaluated)]
    assert accuracies[1] > 90
    assert accuracies[1] == accuracies[2]
    assert "waited longest for data" in (tmp_path / "runs" / "rings" / "log.txt").read_text()
    assert "nothing to do" in run_example(PROGRAM, "--resume", *options, "train.train_iter=150")
