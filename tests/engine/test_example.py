"""The program in `examples/engine` trains, goes on, evaluates, and is run from the command line as it says."""

import re
import runpy
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "examples" / "engine" / "train_net.py"


def run(arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setattr(sys, "argv", [str(PROGRAM), *arguments])
    runpy.run_path(str(PROGRAM), run_name="__main__")
    return capsys.readouterr().out


@pytest.mark.slow
def test_the_program_trains_goes_on_and_evaluates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["train.dist.device_type=cpu", "train.checkpointer.period=50", "train.evaluation.eval_period=50"]
    first = run([*options, "train.train_iter=100"], monkeypatch, capsys)
    assert (tmp_path / "runs" / "rings" / "metrics.json").exists()
    again = run(["--resume", *options, "train.train_iter=150"], monkeypatch, capsys)
    evaluated = run(["--resume", "--eval-only", *options, "train.train_iter=150"], monkeypatch, capsys)
    accuracies = [float(re.findall(r"held-out points: ([\d.]+)%", text)[0]) for text in (first, again, evaluated)]
    assert accuracies[1] > 90
    assert accuracies[1] == accuracies[2]
    assert "waited longest for data" in (tmp_path / "runs" / "rings" / "log.txt").read_text()
    assert "nothing to do" in run(["--resume", *options, "train.train_iter=150"], monkeypatch, capsys)
