"""`treadle config`: configs shown and compared."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.cli.conftest import Treadle
from treadle.cli import app
from treadle.config import LazyConfig

CONFIG = "configs/small.py"


def test_a_config_is_shown_as_yaml_that_loads_again(project: Path, treadle: Treadle) -> None:
    Path("shown.yaml").write_text(treadle("config", "show", CONFIG, "optim.lr=0.5").stdout)
    shown, own = LazyConfig.load("shown.yaml"), LazyConfig.load(CONFIG)
    assert (shown.optim.lr, shown.model._target_) == (0.5, "mine.parts.Network")
    assert shown.train == own.train
    assert shown.train.evaluation.evaluator.topk == (1, 5)


def test_one_key_is_shown_alone(project: Path, treadle: Treadle) -> None:
    assert treadle("config", "show", CONFIG, "--key", "optim").stdout == "_target_: torch.optim.AdamW\nlr: 0.05\n"
    assert treadle("config", "show", CONFIG, "--key", "train.dist.device_type").stdout == "cpu\n"
    assert treadle("config", "show", CONFIG, "--key", "width").stdout == "8\n"


def test_interpolations_are_shown_or_resolved(project: Path, treadle: Treadle) -> None:
    assert "width: ${width}" in treadle("config", "show", CONFIG, "--key", "model").stdout
    assert "width: 8" in treadle("config", "show", CONFIG, "--key", "model", "--resolve").stdout


def test_a_config_is_shown_as_python(project: Path, treadle: Treadle) -> None:
    text = treadle("config", "show", CONFIG, "--format", "py").stdout
    assert "cfg.optim = torch.optim.AdamW(lr=0.05)\n" in text
    assert "cfg.train.evaluation.eval_metric = 'Acc@1'\n" in text
    shorter = treadle("config", "show", CONFIG, "--format", "py", "--key", "train.checkpointer").stdout
    assert shorter.splitlines()[0] == "cfg.train.checkpointer.period = 4"


def test_the_config_of_a_run_and_one_of_treadles_are_shown(project: Path, treadle: Treadle) -> None:
    treadle("train", CONFIG, "train.train_iter=2")
    assert treadle("config", "show", "runs/small", "--key", "train.train_iter").stdout == "2\n"
    assert treadle("config", "show", "common/train.py", "--key", "train.seed").stdout == "1234\n"


def test_a_diff_says_what_was_added_removed_and_changed(project: Path, treadle: Treadle) -> None:
    Path("a.yaml").write_text("optim: {lr: 0.1, betas: [0.9, 0.95], eps: 1.0e-8}\nname: x\n")
    Path("b.yaml").write_text("optim: {lr: 0.2, betas: [0.9, 0.99], decay: 0.5}\nname: x\n")
    assert treadle("config", "diff", "a.yaml", "b.yaml").stdout.splitlines() == [
        "changed  optim.lr  0.1 -> 0.2",
        "changed  optim.betas  [0.9, 0.95] -> [0.9, 0.99]",
        "removed  optim.eps  1e-08",
        "added    optim.decay  0.5",
        "2 changed, 1 added, 1 removed, from a.yaml to b.yaml",
    ]


def test_a_diff_fits_into_80_columns(project: Path, treadle: Treadle) -> None:
    Path("a.yaml").write_text(f"text: {'a' * 50}\n")
    Path("b.yaml").write_text(f"text: {'b' * 50}\n")
    lines = treadle("config", "diff", "a.yaml", "b.yaml").stdout.splitlines()
    assert lines[:3] == ["changed  text", f"    - '{'a' * 50}'", f"    + '{'b' * 50}'"]


def test_a_diff_is_coloured_on_a_terminal(project: Path) -> None:
    Path("a.yaml").write_text("x: 1\ny: 1\n")
    Path("b.yaml").write_text("x: 2\nz: 1\n")
    environment = {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": "80"}
    text = CliRunner().invoke(app, ["config", "diff", "a.yaml", "b.yaml"], env=environment, color=True).stdout
    for colour, word in (("33", "changed"), ("31", "removed"), ("32", "added")):
        assert f"\x1b[{colour}m{word}" in text


def test_equal_configs_say_the_same_and_a_script_can_ask(project: Path, treadle: Treadle) -> None:
    Path("a.yaml").write_text("x: 1\n")
    Path("b.yaml").write_text("x: 2\n")
    assert treadle("config", "diff", "a.yaml", "a.yaml").stdout == "a.yaml and a.yaml say the same\n"
    treadle("config", "diff", "a.yaml", "a.yaml", "--exit-code")
    treadle("config", "diff", "a.yaml", "b.yaml", "--exit-code", status=1)


def test_a_config_is_compared_with_the_run_it_made(project: Path, treadle: Treadle) -> None:
    treadle("train", CONFIG, "train.train_iter=2", "optim.lr=0.1")
    lines = treadle("config", "diff", CONFIG, "runs/small").stdout.splitlines()
    assert "changed  optim.lr  0.05 -> 0.1" in lines
    assert "changed  train.global_batch_size  None -> 8" in lines
    assert "added    train.scheduler.max_iter  2" in lines
    assert "changed  model.width  '${width}' -> 8" in lines


@pytest.mark.parametrize("key", ["dataloader.test.1", "width.x", "nothing"])
def test_a_key_that_leads_nowhere_is_an_error(project: Path, treadle: Treadle, key: str) -> None:
    text = treadle("config", "show", CONFIG, "--key", key, status=1).stderr
    assert f"has no key {key.rpartition('.')[2]!r}" in text
