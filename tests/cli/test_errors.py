"""Mistakes of the user's end in one message on stderr; errors in programs keep their traceback."""

import re
from pathlib import Path

import pytest

from tests.cli.conftest import Treadle
from treadle.cli._errors import error_message
from treadle.errors import ConfigError

CONFIG = "configs/small.py"

MISTAKES = {
    ("train", "configs/smal.py"): "there is no config file configs/smal.py; did you mean 'small.py'?",
    ("train", "configs"): "configs is a folder; give a config file, or resume a run by 'treadle resume configs'",
    ("train", "README"): "README is no config file; its name must end in one of .py, .yaml, .yml",
    ("train", CONFIG, "optim.lrr=1"): "unknown key 'optim.lrr' in configs/small.py; did you mean 'optim.lr'?",
    ("train", CONFIG, "optim.lr"): "'optim.lr' is no override; write key=value, +key=value to add a key",
    ("train", CONFIG, "+model.widht=1"): "model.widht in configs/small.py: Network takes no 'widht'; did you mean",
    ("train", CONFIG, "~model.width"): "model in configs/small.py: calling Network failed: TypeError: ",
    ("train", CONFIG, "optim.lr=-1"): "optim in configs/small.py: calling AdamW failed: ValueError: Invalid learning",
    (
        "train",
        CONFIG,
        "model._target_=mine.parts.Net",
    ): "model._target_ in configs/small.py: 'mine.parts.Net' cannot be",
    ("train", CONFIG, "train.train_iter=-1"): "train_iter=-1 must be a whole number from 0 up",
    (
        "train",
        CONFIG,
        "+trainer=mine.parts.Network",
    ): "trainer in configs/small.py: Network is no DefaultTrainer; derive",
    (
        "train",
        CONFIG,
        "+trainer=mine.parts.Greetin",
    ): "trainer in configs/small.py: 'mine.parts.Greetin' cannot be found",
    ("train", CONFIG, "+trainer=3"): "trainer in configs/small.py is 3; give the full name of a class, or a LazyCall",
    ("resume", "runs/small"): "there is no run folder runs/small; 'treadle runs' lists those that are there",
    ("resume", "configs"): "configs holds no config.yaml, so it is no run that a config began",
    ("eval", "runs/small"): "there is no run folder runs/small; 'treadle runs' lists those that are there",
    ("train", CONFIG, "--run-dir", "configs/small.py/run"): "the run folder configs/small.py/run cannot be written:",
    ("report", CONFIG): "configs/small.py is not the folder of a run; the folder of a run holds checkpoints/ and",
    ("runs", "nowhere"): "there is no folder nowhere",
    ("config", "show", CONFIG, "--key", "optim.lrr"): "optim in configs/small.py has no key 'lrr'; did you mean 'lr'?",
    ("config", "diff", CONFIG, "b.yaml"): "there is no config file b.yaml",
    ("import", "a.json", "-o", "a.pt", "--space", "a.B"): "a.pt: an architecture is written as JSON; give it a name",
    ("export", "nothing.pt", "-o", "x"): "there is no checkpoint file nothing.pt",
}


@pytest.mark.parametrize("arguments", MISTAKES, ids=" ".join)
def test_a_mistake_is_one_message_without_a_traceback(
    project: Path, treadle: Treadle, arguments: tuple[str, ...]
) -> None:
    result = treadle(*arguments, status=1)
    lines = result.stderr.splitlines()
    assert max(map(len, lines)) <= 80 or not any(" " in line.strip() for line in lines if len(line) > 80)
    assert "Traceback" not in result.output
    command = " ".join(arguments[: 2 if arguments[0] == "config" else 1])
    assert " ".join(line.strip() for line in lines).startswith(f"treadle {command}: {MISTAKES[arguments]}")


MISUSES = {
    ("train",): "Missing argument 'CONFIG'",
    ("train", CONFIG, "--nproc", "zero"): "--nproc 'zero' must be a number from 1 up, or 'gpu' for one on each GPU",
    ("train", CONFIG, "--nnodes", "2"): "--nnodes 2 needs --rdzv-endpoint HOST:PORT, where the machines meet",
    ("train", CONFIG, "--nnodes", "3:2"): "--nnodes '3:2' must be a number of machines, or a range such as 2:4",
    ("train", CONFIG, "--node-rank", "0"): "--node-rank needs --rdzv-endpoint HOST:PORT, where the machines meet",
    ("train", CONFIG, "--max-restarts", "-1"): "--max-restarts -1 must be 0 or more",
    ("config", "show", CONFIG, "--format", "xml"): "'xml' is not one of 'yaml', 'py'",
}


@pytest.mark.parametrize("arguments", MISUSES, ids=" ".join)
def test_a_wrong_option_has_status_2_and_fits_into_80_columns(
    project: Path, treadle: Treadle, arguments: tuple[str, ...]
) -> None:
    text = treadle(*arguments, status=2).stderr
    assert max(map(len, text.splitlines())) <= 80
    assert MISUSES[arguments] in re.sub(r"\s*│\n│\s*", " ", text)


def test_a_wrong_line_of_a_config_is_named_with_its_number(project: Path, treadle: Treadle) -> None:
    Path("configs/wrong.py").write_text("width = 3\nheight = widht * 2\n")
    text = treadle("train", "configs/wrong.py", status=1).stderr
    assert text == "treadle train: configs/wrong.py, line 2: NameError: name 'widht' is not defined\n"


def test_a_module_that_fails_when_a_config_imports_it_keeps_its_traceback(project: Path, treadle: Treadle) -> None:
    Path("mine/broken.py").write_text("def fail():\n    raise KeyError('here')\n\n\nfail()\n")
    Path("configs/wrong.py").write_text("import mine.broken\n")
    text = treadle("train", "configs/wrong.py", status=1).stderr
    assert 'mine/broken.py", line 2, in fail' in text
    assert text.endswith("treadle train: configs/wrong.py, line 1: KeyError: 'here'\n")


def test_an_error_inside_of_a_target_keeps_its_traceback_and_names_the_place(project: Path, treadle: Treadle) -> None:
    text = treadle("train", CONFIG, "model._target_=mine.parts.Unbuildable", status=1).stderr
    assert text.startswith("Traceback")
    assert "in __init__\n    self.layers = nn.Linear(2, width)" in text
    assert "treadle train: model in configs/small.py: calling Unbuildable failed:\n  AttributeError: " in text
    assert "InstantiationError" not in text


def test_an_error_in_training_keeps_its_traceback(project: Path, treadle: Treadle) -> None:
    text = treadle("train", CONFIG, "model._target_=mine.parts.Faulty", status=1).stderr
    assert text.startswith("Traceback")
    assert "in forward\n    scores = self.layers(points)" in text
    assert "RuntimeError: mat1 and mat2 shapes cannot be multiplied" in text


VECTOR = """
from mine.parts import Network


class Vector(Network):
    def forward(self, points, labels):
        return {"half_loss": self.layers(points)[:, 0]}
"""


def test_what_was_noted_on_an_error_is_told_with_it(project: Path, treadle: Treadle) -> None:
    Path("mine/vector.py").write_text(VECTOR)
    text = treadle("train", CONFIG, "model._target_=mine.vector.Vector", status=1).stderr
    message, note = text.replace("\n  ", " ").splitlines()
    assert message.endswith("returned a loss of shape (8,); reduce it with .mean() or .sum()")
    assert note.startswith("at step 1, epoch 1, in calculate_train_batch_loss, for batches of {points: float32 (8, 2)")


def test_what_was_noted_on_an_error_behind_another_is_told_too() -> None:
    error, behind = ConfigError("the config cannot be read: there is no file a.yaml"), ConfigError("no file a.yaml")
    error.__cause__ = behind
    behind.add_note("the run was started elsewhere")
    error.add_note("look into the log")
    assert error_message(error).splitlines() == [str(error), "look into the log", "the run was started elsewhere"]


def test_every_error_has_a_traceback_if_that_is_asked_for(
    project: Path, treadle: Treadle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TREADLE_TRACEBACK", "1")
    text = treadle("train", "configs/smal.py", status=1).stderr
    assert text.startswith("Traceback")
    assert "ConfigError: there is no config file configs/smal.py; did you mean 'small.py'?" in text


def test_a_message_for_a_program_to_read_is_one_line(
    project: Path, treadle: Treadle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS")
    text = treadle("train", CONFIG, "+model.widht=1", status=1).stderr
    assert len(text.splitlines()) == 1
