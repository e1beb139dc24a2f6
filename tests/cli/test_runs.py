"""`treadle runs`: what the folders of runs tell, whoever made them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Treadle
from tests.interrupting import make_trainer, samples
from treadle.cli.runs import find_runs, summarize_run
from treadle.errors import CheckpointError
from treadle.runs.lock import RunLock
from treadle.runs.status import STATUS, read_status

CONFIG = "configs/small.py"


def rows(text: str) -> dict[str, list[str]]:
    """Return the rows of the table by the name of the run."""
    return {line.split()[0]: line.split()[1:] for line in text.splitlines()[1:]}


def test_runs_are_listed_with_their_step_state_loss_best_metric_age_and_size(project: Path, treadle: Treadle) -> None:
    treadle("train", CONFIG)
    text = treadle("runs").stdout
    assert text.splitlines()[0].split() == ["run", "step", "state", "loss", "best", "age", "size"]
    assert max(map(len, text.splitlines())) <= 80
    lines = [json.loads(line) for line in Path("runs/small/metrics.jsonl").read_text().splitlines()]
    loss = [line["total_loss"] for line in lines if "total_loss" in line][-1]
    best = max(line["Acc@1"] for line in lines if "Acc@1" in line)
    assert all(line["wall_time"] > 1.7e9 for line in lines)
    assert max(line.get("time", 0.0) for line in lines) < 1e9  # the seconds of a step, where they are known
    row = rows(text)["small"]
    assert row[:5] == ["12/12", "finished", f"{loss:.4g}", "Acc@1", f"{best:.4g}"]
    # The page of the run is most of it.
    assert row[-1] == "MiB"


def test_runs_are_found_in_folders_below_and_the_newest_comes_first(project: Path, treadle: Treadle) -> None:
    for name in ("old", "wide/new"):
        treadle("train", CONFIG, "train.train_iter=1", "-o", f"runs/{name}")
    for path in [Path("runs/old"), *Path("runs/old").rglob("*")]:
        os.utime(path, (1, 1))
    assert list(rows(treadle("runs").stdout)) == ["wide/new", "old"]
    assert list(rows(treadle("runs", "runs/wide").stdout)) == ["new"]
    assert list(rows(treadle("runs", "runs/wide/new").stdout)) == ["new"]


def test_runs_are_printed_as_json(project: Path, treadle: Treadle) -> None:
    treadle("train", CONFIG, "train.train_iter=1")
    (found,) = [json.loads(line) for line in treadle("runs", "--json").stdout.splitlines()]
    assert (found["name"], found["state"], found["step"], found["limit"]) == ("small", "finished", 1, 1)


def test_a_folder_without_runs_says_so(project: Path, treadle: Treadle) -> None:
    assert treadle("runs", "configs").stdout == "there are no runs in configs\n"


def test_a_run_that_an_error_ended_has_failed(project: Path, treadle: Treadle) -> None:
    treadle("train", CONFIG, "model._target_=mine.parts.Faulty", status=1)
    assert rows(treadle("runs").stdout)["small"][:2] == ["0/12", "failed"]
    status = read_status(Path("runs/small"))
    assert status is not None
    assert status.message.startswith("RuntimeError: mat1 and mat2 shapes")


PROGRAM = """
import os, sys
from pathlib import Path
from treadle.runs.lock import RunLock
from treadle.runs.status import read_status
holder = RunLock(Path(sys.argv[1]))
print(read_status(Path(sys.argv[1])).state, flush=True)
sys.stdin.read()
holder.end("stopped", "asked to")
"""


def test_a_run_is_running_while_its_process_lives_and_killed_when_that_is_gone(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        assert summarize_run(tmp_path, tmp_path).state == "running"
        process.kill()
    status = read_status(tmp_path)
    assert status is not None
    assert (status.state, status.message) == ("killed", "its process ended without a word")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        process.communicate()
    assert summarize_run(tmp_path, tmp_path).state == "stopped"


def test_a_forked_worker_does_not_keep_the_folder_of_a_run_that_has_ended(tmp_path: Path) -> None:
    holder = RunLock(tmp_path)
    child = os.fork()
    if not child:
        os.read(os.pipe()[0], 1)
    try:
        holder.end("finished")
        RunLock(tmp_path).end("finished")
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def test_runs_of_the_trainer_door_are_listed_too(tmp_path: Path) -> None:
    make_trainer(tmp_path / "a").train(samples(), 2, log_every=2)
    make_trainer(tmp_path / "b").train(samples(), 2, max_steps=4, eval_dataset=samples(8))
    found = {run.name: summarize_run(run, tmp_path) for run in find_runs(tmp_path)}
    assert (found["a"].state, found["a"].step, found["a"].limit) == ("finished", 6, 6)
    assert found["a"].loss is not None
    assert (found["b"].best_metric, found["b"].limit) == ("eval_loss_epoch", 4)


def test_what_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    (run / "metrics.jsonl").write_text('{"step": 3, "total_loss": "nan"}\nhalf a li')
    (run / "config.yaml").write_text("train: [")
    (run / STATUS).write_text("[]")
    facts = summarize_run(run, tmp_path)
    assert (facts.state, facts.step, facts.limit, facts.best) == ("unfinished", 3, None, None)
    assert str(facts.loss) == "nan"


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    message = r"the run folder .*file/run cannot be written: .*Not a directory.*; choose another folder"
    with pytest.raises(CheckpointError, match=message):
        RunLock(tmp_path / "file" / "run")
