"""`treadle search`: hyperparameters of a config, architectures of a space, and any function, by one command."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.cli.project import inside
from tests.cli.project import treadle as run_treadle
from tests.forking.starting import run, start
from treadle.cli import app
from treadle.console.lines import number

PARTS = """
from torch import nn
from treadle import nas


def score(config, offset=0.0):
    return -(config.x - 1) ** 2 + offset


class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.op = nas.LayerChoice({"linear": nn.Linear(2, 2), "skip": nn.Identity()}, label="op")
        self.width = nas.ValueChoice([2, 4], label="width")

    def forward(self, x):
        return self.op(x)


@nas.register_trainer
class Judge(nas.BaseTrainer):
    def __init__(self, model, bonus=0.0):
        self.model, self.bonus = model, bonus

    def fit(self):
        nas.report_final_result(sum(p.numel() for p in self.model.parameters()) + self.bonus)
"""

FUNCTION = """
from mine.judging import score
from treadle.config import LazyCall as L
from treadle import nas

x = nas.uniform(-2, 2)
objective = L(score)(offset=0.5)
search = {"trials": 6}
"""

SPACE = """
from mine.judging import Judge, Net
from treadle.config import LazyCall as L
from treadle import nas

space = L(Net)(width=4)
trainer = L(Judge)(bonus=nas.one_of(0.0, 0.25))
search = dict(strategy="grid")
"""

CHOICES = """
x: 0.0
objective: {_target_: mine.judging.score}
search:
  trials: 5
  strategy: grid
  choices:
    x: [0.0, 1.0, 2.0]
"""

Treadle = Callable[..., Any]


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """A project with configs to search, as the working folder."""
    with inside(tmp_path) as folder:
        (folder / "mine" / "judging.py").write_text(PARTS)
        for name, text in {"function.py": FUNCTION, "space.py": SPACE, "choices.yaml": CHOICES}.items():
            (folder / "configs" / name).write_text(text)
        yield folder


@pytest.fixture
def treadle(project: Path) -> Treadle:
    """A function that runs the command in this process; it must end with the status that is expected."""
    return partial(run_treadle, "search")


def results_in(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return found


def test_the_help_fits_into_80_columns_and_has_an_example() -> None:
    result = CliRunner().invoke(app, ["search", "--help"], prog_name="treadle", env={"COLUMNS": "80"})
    assert max(map(len, result.output.splitlines())) <= 80
    assert "  treadle search configs/" in result.output.partition("Example:")[2]


def test_the_command_loads_neither_torch_nor_optuna_for_its_help() -> None:
    program = (
        "import contextlib, io, sys\nfrom treadle.cli import app\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):\n"
        "    app(['search', '--help'])\n"
        "print([name for name in ('torch', 'optuna', 'omegaconf') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_domains_in_a_config_are_searched_by_a_function_of_it(project: Path, treadle: Treadle) -> None:
    output = treadle("configs/function.py").output
    results = results_in(project / "runs" / "function-search")
    assert len(results["trials"]) == 6
    best = max(trial["values"]["default"] for trial in results["trials"])
    lines = output.splitlines()
    assert re.match(r"trial 0  [\d.]+s  ", lines[0])
    assert lines[6] == "runs/function-search: 6 complete"
    assert lines[7].startswith(f"best: trial {results['best']['number']}  {number(best)}  x=")
    assert lines[8] == "the config with these values: runs/function-search/best.yaml"
    panels = "runs/function-search/panels"
    assert lines[9] == f"drawings: {panels}/parallel_coordinates.svg, {panels}/trials.svg"
    assert all((project / path).is_file() for path in lines[9].removeprefix("drawings: ").split(", "))
    text = (project / "runs" / "function-search" / "best.yaml").read_text()
    assert text == f"x: {results['best']['parameters']['x']}\n"


def test_domains_are_given_on_the_command_line(project: Path, treadle: Treadle) -> None:
    treadle("configs/function.py", "x=one_of(0,1)", "--strategy", "grid", "-o", "here")
    assert [trial["parameters"]["x"] for trial in results_in(project / "here")["trials"]] in ([0, 1], [1, 0])


def test_domains_are_given_by_key_in_a_yaml_file(project: Path, treadle: Treadle) -> None:
    treadle("configs/choices.yaml", "-o", "here")
    results = results_in(project / "here")
    assert sorted(trial["parameters"]["x"] for trial in results["trials"]) == [0.0, 1.0, 2.0]
    assert results["best"]["parameters"] == {"x": 1.0}


def test_a_space_of_networks_is_searched_with_the_arguments_of_its_trainer(project: Path, treadle: Treadle) -> None:
    treadle("configs/space.py", "-o", "here")
    results = results_in(project / "here")
    assert len(results["trials"]) == 8
    assert results["best"]["parameters"] == {"op": "linear", "width": 2, "trainer.bonus": 0.25} or results["best"][
        "values"
    ] == {"default": 6.25}


def test_the_same_command_again_runs_nothing_again(project: Path, treadle: Treadle) -> None:
    treadle("configs/function.py")
    before = results_in(project / "runs" / "function-search")
    output = treadle("configs/function.py").output
    assert results_in(project / "runs" / "function-search") == before
    assert not any(line.startswith("trial ") for line in output.splitlines())
    treadle("configs/function.py", "--trials", "8")
    assert len(results_in(project / "runs" / "function-search")["trials"]) == 8


def test_json_is_all_that_is_printed_where_it_is_asked_for(project: Path, treadle: Treadle) -> None:
    results = json.loads(treadle("configs/function.py", "--json", "-n", "2").stdout)
    assert len(results["trials"]) == 2


@pytest.mark.slow
def test_hyperparameters_of_a_training_are_searched(project: Path, treadle: Treadle) -> None:
    command = ["configs/small.py", "optim.lr=log(1e-4,1e-1)", "model.dropout=one_of(0.0,0.3)", "-m", "Acc@1", "-n", "3"]
    output = treadle(*command, "--strategy", "tpe").output
    folder = project / "runs" / "small-search"
    results = results_in(folder)
    assert [trial["state"] for trial in results["trials"]] == ["complete"] * 3
    for trial in results["trials"]:
        assert list(trial["parameters"]) == ["optim.lr", "model.dropout"] or set(trial["parameters"]) == {
            "optim.lr",
            "model.dropout",
        }
        assert [step for step, _ in trial["curve"]] == [4, 8]
        assert (folder / "trials" / f"{trial['number']:04d}" / "config.yaml").exists()
    assert [line.split()[0] for line in output.splitlines()] == ["trial"] * 3 + [
        f"{folder.relative_to(project)}:",
        "best:",
        "the",
        "drawings:",
    ]
    assert all("s  Acc@1 " in line for line in output.splitlines()[:3])
    assert "training from iteration 0 to 12" in (folder / "trials" / "0000" / "log.txt").read_text()
    again = CliRunner().invoke(app, ["config", "show", str(folder / "best.yaml"), "--key", "optim.lr"])
    assert float(again.stdout) == results["best"]["parameters"]["optim.lr"]


@pytest.mark.slow
def test_a_search_of_trainings_that_is_killed_ends_like_one_that_was_not(project: Path) -> None:
    command = ["-m", "treadle.cli", "search", "configs/small.py", "optim.lr=log(1e-3,1e-1)"]
    command += ["-m", "Acc@1", "-n", "3", "+dataloader.train.pause=0.002"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run(*command, "-o", "whole/search", env=environment).check_returncode()
    for killed in range(2):
        process = start(*command, "-o", "cut/search", env=environment)
        wanted = project / "cut" / "search" / "trials" / f"{killed:04d}" / "checkpoints" / "step_00000004"
        deadline = time.monotonic() + 240
        while not wanted.exists() and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
    run(*command, "-o", "cut/search", env=environment).check_returncode()
    whole, cut = (results_in(project / name / "search")["trials"] for name in ("whole", "cut"))
    assert [(trial["parameters"], trial["values"]) for trial in cut] == [
        (trial["parameters"], trial["values"]) for trial in whole
    ]


@pytest.mark.slow
def test_a_promoted_training_of_a_config_has_the_bits_of_one_that_was_never_paused(
    project: Path, treadle: Treadle
) -> None:
    command = ["configs/small.py", "optim.lr=log(1e-3,1e-1)", "-m", "Acc@1", "-n", "3"]
    treadle(*command, "-o", "paused/search", "--promotion", "halving(4, 12, 3)")
    treadle(*command, "-o", "whole/search")
    trials = results_in(project / "paused" / "search")["trials"]
    [best] = [trial for trial in trials if trial["state"] == "complete"]
    assert [trial["state"] for trial in trials].count("pruned") == 2
    assert [step for step, _ in best["curve"]] == [4, 8]
    folders = [project / name / "search" / "trials" / f"{best['number']:04d}" for name in ("paused", "whole")]
    paused, whole = (folder / "checkpoints" / "step_00000012" / "rank_0.safetensors" for folder in folders)
    assert paused.read_bytes() == whole.read_bytes()
    assert "training from iteration 4 to 12" in (folders[0] / "log.txt").read_text()


MISTAKES = {
    ("configs/functio.py",): "there is no config file configs/functio.py; did you mean 'function.py'?",
    ("configs/function.py", "y=one_of(1,2)"): "unknown key 'y' in configs/function.py",
    ("configs/function.py", "x=log(0,1)"): "'log(0,1)': log_uniform(0.0, 1.0): by logarithm, a range begins above 0",
    ("configs/function.py", "x=3"): "there is nothing to decide in the config; put nas.one_of(...)",
    ("configs/function.py", "-s", "evoluton"): "strategy='evoluton' is unknown; did you mean 'evolution'?",
    ("configs/function.py", "-n", "0"): "trials=0 must be a whole number from 1 up",
    ("configs/function.py", "+search.trails=3"): "search.trails: a search takes no 'trails'; did you mean 'trials'?",
    ("configs/space.py", "~trainer"): "the config has a `space`, but no `trainer`; add trainer = LazyCall",
    ("configs/choices.yaml", "search.choices.x=3"): "search.choices: x is 3; write a domain, such as 'log(1e-4, 1e-2)'",
    ("configs/choices.yaml", "search.choices=3"): "search.choices is 3; it holds domains by key:",
    ("configs/small.py", "train.train_iter=one_of(8,2.5)"): "train.train_iter=2.5",
    ("configs/small.py", "train.amp.enabled=one_of(off,maybe)"): "train.amp.enabled='maybe'",
    ("configs/small.py", "optim.lr=log(1e-3,1e-1)", "+train.train_itr=5"): "unknown key 'train.train_itr'",
    ("configs/choices.yaml", "search=3"): "search in the config is 3; it holds settings of the search, such as trials",
}


@pytest.mark.parametrize("arguments", MISTAKES, ids=" ".join)
def test_a_mistake_is_one_message_without_a_traceback(treadle: Treadle, arguments: tuple[str, ...]) -> None:
    result = treadle(*arguments, status=1)
    assert "Traceback" not in result.output
    told = " ".join(line.strip() for line in result.stderr.splitlines())
    assert told.startswith(f"treadle search: {MISTAKES[arguments]}")


def test_a_metric_that_no_evaluation_reports_ends_the_search_with_those_that_are(
    project: Path, treadle: Treadle
) -> None:
    result = treadle("configs/small.py", "optim.lr=log(1e-4,1e-1)", "-m", "accuracy", "-n", "3", status=1)
    told = " ".join(line.strip() for line in result.stderr.splitlines())
    assert "treadle search: an intermediate result has ['Acc@1', " in told
    assert "but not 'accuracy' or 'default', which drives the search: no trial has reported it" in told
    assert sorted(path.name for path in (project / "runs" / "small-search" / "trials").iterdir()) == ["0000"]


@pytest.mark.slow
def test_a_training_without_evaluation_cannot_be_searched(project: Path, treadle: Treadle) -> None:
    result = treadle("configs/small.py", "optim.lr=log(1e-3,1e-1)", "~dataloader.test", "-n", "1", status=1)
    assert "a search compares what trials evaluate" in result.output
