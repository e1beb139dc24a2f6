"""Runs that somebody else made: nothing that their folder names is called before somebody agrees."""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Treadle
from tests.cli.project import inside
from tests.cli.project import treadle as run_treadle
from treadle.cli import _consent as consent
from treadle.cli._allowed_targets import Allowed, find_targets
from treadle.cli._consent import VARIABLE
from treadle.config.targets import stays_within
from treadle.errors import ConfigError
from treadle.files.ownership import COMMENT, is_own_file, mark_file

CONFIG = "configs/small.py"
EVIL = "open('it-ran', 'w')\ndef X(**given):\n    open('it-was-called', 'w')\n"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run."""
    with inside(tmp_path_factory.mktemp("trained")) as folder:
        run_treadle("train", CONFIG)
    return folder / "runs" / "small"


@pytest.fixture
def run(trained: Path, project: Path) -> Path:
    """A run of your own in the project."""
    return Path(shutil.copytree(trained, "runs/small"))


def spoil(run: Path, target: str, **arguments: Any) -> None:
    """Have the config of a run call something."""
    text = (run / "config.yaml").read_text()
    added = {"_target_": target, **arguments}
    body = text[: text.rindex(COMMENT)] if COMMENT in text else text
    assert "  dropout: 0.3\n" in body
    (run / "config.yaml").write_text(body.replace("  dropout: 0.3\n", f"  dropout: {json.dumps(added)}\n"))


def said(done: Any) -> str:
    return " ".join(done.stderr.split())


def nothing_ran() -> bool:
    return not Path("it-ran").exists() and not Path("it-was-called").exists()


def test_a_run_of_ones_own_needs_no_flag_whatever_it_calls(project: Path, treadle: Treadle) -> None:
    changes = ("+dataloader.test.more={_target_:mine.parts.Points,count:8,seed:{_target_:operator.add,_args_:[1,1]}}",)
    treadle("train", CONFIG, *changes)
    assert is_own_file(Path("runs/small/config.yaml"))
    assert "more/Acc@1" in json.loads(treadle("eval", "runs/small", "--json").stdout)
    treadle("resume", "runs/small", "train.train_iter=14")
    assert is_own_file(Path("runs/small/config.yaml"))
    assert "14 of 14" in treadle("resume", "runs/small").stdout


@pytest.mark.parametrize("command", ["eval", "resume", "verify"])
@pytest.mark.parametrize("target", ["os.system", "torch.os.system", "runs/small/evil.py:X", "mine.parts.os.system"])
def test_what_somebody_elses_config_names_is_not_called(run: Path, treadle: Treadle, command: str, target: str) -> None:
    (run / "evil.py").write_text(EVIL)
    spoil(run, target, command="touch it-was-called")
    done = treadle(command, "runs/small", status=2 if command == "verify" else 1)
    assert "runs/small/config.yaml was not written by you here, or was changed since" in said(done)
    assert f"this calls what it names: {target!r} (model.dropout). Whoever wrote it decides what that does." in said(
        done
    )
    assert f"pass --allow with these names, or '*' for all, or set {VARIABLE}" in said(done)
    assert nothing_ran()


@pytest.mark.parametrize(
    "arguments", [["train", "{}", "--fast-dev-run"], ["doctor", "{}"], ["search", "{}", "optim.lr=log(1e-4,1e-2)"]]
)
def test_a_config_file_in_the_folder_of_a_run_is_asked_about_too(
    run: Path, treadle: Treadle, arguments: list[str]
) -> None:
    spoil(run, "os.system", command="touch it-was-called")
    done = treadle(*(word.format("runs/small/config.yaml") for word in arguments), status=1)
    assert "'os.system' (model.dropout)" in said(done)
    assert nothing_ran()


def test_what_is_hidden_in_an_interpolation_is_found(run: Path, treadle: Treadle) -> None:
    text = (run / "config.yaml").read_text()
    hidden = """hidden: '${oc.create:"{_target_: os.system, command: touch it-was-called}"}'\n"""
    (run / "config.yaml").write_text(hidden + text)
    done = treadle("eval", "runs/small", status=1)
    assert "'os.system' (hidden)" in said(done)


PAIRS = {"_target_": "builtins.dict", "_args_": [[["_target_", "os.system"], ["command", "touch it-was-called"]]]}
LATER = "\\${oc.create:'{_target_: os.system, command: touch it-was-called}'}"


@pytest.mark.parametrize(
    ("target", "arguments", "name"),
    [
        ("treadle.engine.config.builders.build_node", {"node": PAIRS}, "treadle.engine.config.builders.build_node"),
        ("treadle.engine.DefaultTrainer.build_model", {"cfg": PAIRS}, "treadle.engine.DefaultTrainer.build_model"),
        ("treadle.engine.DefaultTrainer", {"cfg": {"train": {"output_dir": "x"}}}, "treadle.engine.DefaultTrainer"),
        ("mine.parts.build", {"node": {"a": LATER}}, LATER[1:]),
        ("mine.parts.build", {"node": [LATER]}, LATER[1:]),
        ("mine.parts.build", {"node": {"_target_": "builtins.bytes", "_args_": [[36, 123]]}}, "builtins.bytes"),
    ],
)
def test_what_would_call_more_than_can_be_seen_is_asked_about(
    run: Path, treadle: Treadle, target: str, arguments: dict[str, Any], name: str
) -> None:
    with Path("mine/parts.py").open("a") as file:
        file.write("\n\ndef build(node):\n    from treadle.config import instantiate\n\n    instantiate(node)\n")
    spoil(run, target, **arguments)
    done = treadle("eval", "runs/small", status=1)
    assert f"{name!r} (model.dropout" in said(done)
    assert nothing_ran()


def test_a_lazy_call_out_of_pairs_is_not_made(run: Path, treadle: Treadle) -> None:
    spoil(run, "torch.nn.Dropout", p=PAIRS)
    done = treadle("eval", "runs/small", status=1)
    assert "makes a lazy call of 'os.system' out of pairs; write it as a mapping with '_target_'" in said(done)
    assert nothing_ran()


def test_torch_treadle_and_the_code_of_the_working_folder_need_no_mark(run: Path, treadle: Treadle) -> None:
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text[: text.rindex(COMMENT)])
    assert not is_own_file(run / "config.yaml")
    treadle("eval", "runs/small")
    treadle("resume", "runs/small", "train.train_iter=13")
    assert is_own_file(run / "config.yaml")


def test_who_has_another_key_did_not_write_it(
    run: Path, treadle: Treadle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(run, "operator.add", _args_=[0.1, 0.1])
    mark_file(run / "config.yaml")
    assert is_own_file(run / "config.yaml")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    assert not is_own_file(run / "config.yaml")
    assert not (tmp_path / "another").exists()
    assert "'operator.add' (model.dropout)" in said(treadle("eval", "runs/small", status=1))


@pytest.mark.parametrize("allow", ["operator", "operator.add", "*", "timm,operator"])
@pytest.mark.parametrize("variable", [False, True])
def test_an_allow_list_lets_names_through(
    run: Path, treadle: Treadle, allow: str, variable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(run, "operator.add", _args_=[0.1, 0.1])
    if variable:
        monkeypatch.setenv(VARIABLE, allow)
    treadle("eval", "runs/small", *([] if variable else ["--allow", allow]))
    monkeypatch.delenv(VARIABLE, raising=False)
    assert "was not written by you" in said(treadle("eval", "runs/small", "--allow", "oper", status=1))


@pytest.mark.parametrize(("answer", "called"), [("y", True), ("n", False), ("", False)])
def test_whoever_sits_at_a_terminal_is_asked(
    run: Path, treadle: Treadle, answer: str, called: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from typer.testing import CliRunner

    from treadle.cli import app

    spoil(run, "operator.add", _args_=[0.1, 0.1])
    monkeypatch.setattr(consent, "_is_interactive", lambda: True)
    done = CliRunner().invoke(app, ["eval", "runs/small"], input=f"{answer}\n")
    assert "  model.dropout: 'operator.add'" in done.stderr
    assert "Do you trust it? [y/N]" in done.stderr
    assert (done.exit_code == 0) == ("Acc@1" in done.stdout) == called
    assert ("nothing was called" in said(done)) == (not called)


def test_nobody_is_asked_without_a_terminal_nor_in_one_of_several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    there = type("Terminal", (), {"isatty": lambda self: True})()
    monkeypatch.setattr(sys, "stdin", there)
    monkeypatch.setattr(sys, "stderr", there)
    assert consent._is_interactive()
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert not consent._is_interactive()


def test_a_program_that_somebody_elses_manifest_names_is_not_run(run: Path, treadle: Treadle, tmp_path: Path) -> None:
    script = tmp_path.parent / f"{tmp_path.name}-elsewhere.py"
    script.write_text(EVIL)
    (run / "config.yaml").write_text("seed: 1\n")
    manifest = json.loads((run / "manifest.json").read_text())
    for made_by in ({"program": {"script": str(script)}}, {"program": None, "command": ["treadle", "train", "x.py"]}):
        (run / "manifest.json").write_text(json.dumps({**manifest, **made_by}))
        done = treadle("verify", "runs/small", status=2)
        assert "runs/small/manifest.json was not written by you here, or was changed since" in said(done)
        assert nothing_ran()


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("torch.nn.Linear", True),
        ("torch.optim.AdamW", True),
        ("torch.nn.functional.gelu", True),
        ("torch.bfloat16", True),
        ("torch.utils.data.TensorDataset", True),
        ("treadle.optim.param_groups.get_default_optimizer_params", True),
        ("treadle.schedules.warmup_lr.WarmupCosineLR", True),
        ("treadle.engine.evaluation.ClsEvaluator", True),
        ("treadle.engine.DefaultTrainer", True),
        ("builtins.dict", True),
        ("builtins.eval", False),
        ("torch.load", False),
        ("torch.hub.load", False),
        ("torch.nn.modules.module.warnings.warn", False),
        ("treadle.config.LazyConfig.load", False),
        ("treadle.config.locate", False),
        ("treadle.config.targets.locate", False),
        ("treadle.engine.trainers.factory.build_trainer", False),
        ("treadle.recsys.run_recbole", False),
        ("treadle.cli.__main__.app", False),
        ("subprocess.run", False),
        ("os.nothing", False),
        ("posix.nothing", False),
        ("timm.nothing", False),
        ("written_here.own", True),
        ("written_here.system", False),
        ("written_here.os.system", False),
        ("written_here.py:own", True),
        ("runs/written_here.py:own", False),
        ("{outside}:own", False),
        ("/usr/lib/python3/nothing.py:own", False),
    ],
)
def test_a_name_counts_by_what_it_leads_to(
    tmp_path: Path, name: str, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, outside = tmp_path / "here", tmp_path / "outside.py"
    (here / "runs" / "first").mkdir(parents=True)
    for place in (here / "written_here.py", here / "runs" / "written_here.py", outside):
        place.write_text("import os\nfrom os import system\ndef own(): ...\n")
    monkeypatch.chdir(here)
    monkeypatch.syspath_prepend(str(here))
    try:
        assert (name.format(outside=outside) in Allowed((), here / "runs" / "first")) == known
    finally:
        sys.modules.pop("written_here", None)


def test_names_that_are_looked_up_and_the_trainer_count_as_targets() -> None:
    config = {
        "trainer": "mine.Trainer",
        "model": {"_target_": "a.B", "kind": {"_target_": "treadle.config.locate", "name": "c.D"}},
        "more": [{"_target_": "treadle.config.locate", "_args_": ["e.f"]}, ({"_target_": "${model._target_}"},)],
        "other": {"_target_": "treadle.config.targets.locate", "name": "g.h"},
        "made": {"_target_": "treadle.config.locate", "name": {"_target_": "builtins.str"}},
    }
    assert dict(find_targets(config)) == {
        "trainer": "mine.Trainer",
        "model": "a.B",
        "model.kind": "c.D",
        "more.0": "e.f",
        "more.1.0": "a.B",
        # What is looked up by another name, or by a name that is made, is asked about as that.
        "other": "treadle.config.targets.locate",
        "made": "treadle.config.locate",
        "made.name": "builtins.str",
    }


def test_nothing_that_moves_the_cursor_is_printed(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text('"a\\e[2K": {_target_: "os.\\e[2Ksystem"}\n')
    with pytest.raises(ConfigError) as error:
        consent.confirm_config(tmp_path / "config.yaml", None)
    assert "\\x1b[2K" in str(error.value)
    assert "\x1b" not in str(error.value)


def test_a_key_with_a_dot_hides_no_other() -> None:
    config = {"a": {"b": {"_target_": "os.system"}}, "a.b": {"_target_": "torch.nn.Linear"}}
    assert [name for _, name in find_targets(config)] == ["os.system", "torch.nn.Linear"]


def test_the_way_of_a_name_is_followed() -> None:
    assert stays_within("torch.nn.Linear", "torch")
    assert not stays_within("torch.os.system", "torch")
    assert stays_within("os.path.join", "os.path")


def test_without_a_home_nothing_is_marked_and_nothing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    (tmp_path / "config.yaml").write_text("a: 1\n")
    mark_file(tmp_path / "config.yaml")
    assert (tmp_path / "config.yaml").read_text() == "a: 1\n"
    assert not is_own_file(tmp_path / "config.yaml")


def test_the_key_is_its_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "config.yaml").write_text("a: 1\n")
    for _ in range(2):
        mark_file(tmp_path / "config.yaml")
    [key] = (tmp_path / "state" / "treadle").iterdir()
    assert os.stat(key).st_mode & 0o077 == 0
    assert (tmp_path / "config.yaml").read_text().count(COMMENT) == 1
    (tmp_path / "config.yaml").write_text("b: 1\n" + (tmp_path / "config.yaml").read_text())
    assert not is_own_file(tmp_path / "config.yaml")
