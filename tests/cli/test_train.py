"""`treadle train` in one process: where the run goes, what is kept, and what a second start does."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Treadle
from tests.interrupting import starts_of
from treadle.checkpoint import CheckpointStore, Policy
from treadle.config import LazyConfig
from treadle.runs.lock import RunLock
from treadle.runs.status import read_status

CONFIG = "configs/small.py"


def steps_of(run: Path) -> list[int]:
    return CheckpointStore(run / "checkpoints", Policy()).steps()


def test_a_run_goes_to_a_folder_named_after_its_config_and_keeps_itself(project: Path, treadle: Treadle) -> None:
    output = treadle("train", CONFIG).stdout
    run = Path("runs/small")
    assert "runs/small: finished after 12 of 12 iterations: Acc@1 " in output
    assert steps_of(run) == [4, 8, 12]
    assert {path.name for path in run.iterdir()} >= {"config.yaml", "manifest.json", "metrics.json", "log.txt"}
    status = read_status(run)
    assert status is not None
    assert (status.state, status.processes, status.folder) == ("finished", 1, str(project))


def test_the_saved_config_is_resolved_and_starts_the_same_run_without_running_code(
    project: Path, treadle: Treadle
) -> None:
    treadle("train", CONFIG, "width=4")
    text = Path("runs/small/config.yaml").read_text()
    assert "${" not in text
    Path("mine/parts.py").write_text("raise RuntimeError('run')")
    saved = LazyConfig.load("runs/small/config.yaml")
    assert (saved.model.width, saved.model._target_) == (4, "mine.parts.Network")
    assert (saved.train.global_batch_size, saved.train.scheduler.max_iter, saved.train.scheduler.warmup_iter) == (
        8,
        12,
        3,
    )


def test_overrides_change_add_and_remove_keys(project: Path, treadle: Treadle) -> None:
    treadle("train", CONFIG, "optim.lr=1e-3", "+optim.weight_decay=0.5", "~train.warmup_ratio", "train.train_iter=2")
    saved = LazyConfig.load("runs/small/config.yaml")
    assert (saved.optim.lr, saved.optim.weight_decay, saved.train.train_iter) == (1e-3, 0.5, 2)


@pytest.mark.parametrize(
    ("arguments", "folder"),
    [
        (("--run-dir", "here"), "here"),
        (("-o", "here", "train.output_dir=there"), "here"),
        (("train.output_dir=there",), "there"),
    ],
)
def test_the_folder_is_the_one_given_or_the_output_dir_of_the_config(
    project: Path, treadle: Treadle, arguments: tuple[str, ...], folder: str
) -> None:
    treadle("train", CONFIG, "train.train_iter=1", *arguments)
    assert steps_of(Path(folder)) == [1]
    assert not Path("runs").exists()


def test_the_same_command_again_says_that_the_run_is_finished(project: Path, treadle: Treadle) -> None:
    treadle("train", CONFIG)
    before = Path("runs/small/metrics.jsonl").read_text()
    again = treadle("train", CONFIG).stdout
    told = "runs/small is finished: 12 of 12 iterations are done; raise train.train_iter to train longer"
    assert told in again
    assert Path("runs/small/metrics.jsonl").read_text() == before


def test_a_longer_run_goes_on_and_says_what_has_changed(project: Path, treadle: Treadle) -> None:
    treadle("train", CONFIG)
    output = treadle("train", CONFIG, "train.train_iter=16").stdout
    assert "runs/small: resuming from iteration 12 of 16" in output
    log = Path("runs/small/log.txt").read_text()
    assert "since the last start train.train_iter is changed: 12 -> 16" in log
    assert "since the last start train.resume" not in log
    assert starts_of(Path("runs/small")) == [0, 12]
    assert steps_of(Path("runs/small")) == [4, 8, 12, 16]


def test_a_run_that_was_refused_leaves_the_config_of_the_one_that_is_there(project: Path, treadle: Treadle) -> None:
    treadle("train", CONFIG)
    before = Path("runs/small/config.yaml").read_text()
    refused = treadle("train", CONFIG, "width=4", "train.train_iter=16", status=1)
    assert "does not fit Network" in refused.stderr.replace("\n  ", " ")
    assert Path("runs/small/config.yaml").read_text() == before


def test_a_run_is_not_gone_on_with_if_that_is_not_wanted(project: Path, treadle: Treadle) -> None:
    treadle("train", CONFIG)
    refused = treadle("train", CONFIG, "train.resume=false", status=1)
    assert "runs/small already holds a run" in refused.stderr


def test_a_yaml_config_trains_too(project: Path, treadle: Treadle) -> None:
    treadle("train", CONFIG, "train.train_iter=4")
    Path("again.yaml").write_text(Path("runs/small/config.yaml").read_text().replace("runs/small", "runs/again"))
    treadle("train", "again.yaml")
    metrics = [Path(f"runs/{name}/metrics.json").read_text().splitlines()[-1] for name in ("small", "again")]
    assert json.loads(metrics[0]) == json.loads(metrics[1])


@pytest.mark.parametrize(
    "overrides",
    [
        ("+trainer=mine.parts.Greeting",),
        ("+trainer._target_=mine.parts.Greeting", "+trainer.greeting=hello"),
        ("+trainer={_target_:mine.parts.Greeting}",),
    ],
)
def test_the_config_may_name_a_trainer_by_its_name_or_as_a_call(
    project: Path, treadle: Treadle, overrides: tuple[str, ...]
) -> None:
    treadle("train", CONFIG, "train.train_iter=1", *overrides)
    assert Path("greeting.txt").read_text() == "hello"


def test_a_trainer_that_the_config_names_may_have_arguments(project: Path, treadle: Treadle) -> None:
    config = Path(CONFIG).read_text() + "from mine.parts import Greeting\ntrainer = L(Greeting)(greeting='hi')\n"
    Path("configs/own.py").write_text(config)
    treadle("train", "configs/own.py", "train.train_iter=1")
    assert Path("greeting.txt").read_text() == "hi"
    Path("greeting.txt").unlink()
    treadle("resume", "runs/own", "train.train_iter=2")
    assert Path("greeting.txt").read_text() == "hi"


def test_targets_are_found_from_the_working_folder(
    project: Path, treadle: Treadle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place != str(project)])
    treadle("train", CONFIG, "train.train_iter=1")
    assert steps_of(Path("runs/small")) == [1]


def test_a_fast_dev_run_does_a_little_of_everything_and_leaves_nothing(
    project: Path, treadle: Treadle, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    output = treadle("train", CONFIG, "--fast-dev-run").stdout
    summary = output.partition("fast dev run:\n")[2].splitlines()
    assert summary[0] == "  trained    6 iterations of 8 samples on cpu"
    assert summary[1].startswith("  loss       0.")
    assert summary[2].startswith("  evaluated  Acc@1 ")
    assert summary[3] == "  saved      iterations 3, 6; the last was read back"
    assert list(scratch.iterdir()) == []
    assert not Path("runs").exists()


def test_what_is_given_wins_over_a_fast_dev_run_and_a_folder_that_is_given_stays(
    project: Path, treadle: Treadle
) -> None:
    treadle("train", CONFIG, "--fast-dev-run", "-o", "here", "train.train_iter=2", "train.evaluation.enabled=false")
    assert steps_of(Path("here")) == [2]


def test_a_folder_in_which_a_process_trains_is_refused(
    project: Path, treadle: Treadle, monkeypatch: pytest.MonkeyPatch
) -> None:
    treadle("train", CONFIG, "train.train_iter=1")
    monkeypatch.setattr("treadle.runs.lock.PATIENCE", 0.0)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:  # another process: a lock does not shut out the one that holds it
        holder = RunLock(Path("runs/small"))
        os.write(writing, b"1")
        time.sleep(600)
        holder.end("stopped")
    try:
        os.read(reading, 1)
        refused: Any = treadle("train", CONFIG, "train.train_iter=2", status=1)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    text = refused.stderr.replace("\n  ", " ")
    assert f"runs/small is in use: process {child} on " in text
    assert "wait for its end, stop it, or choose another folder" in text
