"""Help: at once, within 80 columns, with an example for each command."""

import json
import os
import platform
import runpy
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from treadle.cli import app

COMMANDS = [
    "demo",
    "init",
    "train",
    "resume",
    "eval",
    "runs",
    "report",
    "doctor",
    "verify",
    "export",
    "import",
    "migrate",
    "config",
    "config show",
    "config diff",
    "data",
    "data prepare",
    "data inspect",
    "recsys",
    "slurm",
]

LOADED = """
import contextlib, io, json, sys
from treadle.cli import app
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    app(["--help"])
print(json.dumps([name for name in ("torch", "omegaconf", "hydra", "yaml") if name in sys.modules]))
"""


def test_help_loads_neither_torch_nor_omegaconf() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []


def help_of(*arguments: str) -> str:
    result = CliRunner().invoke(app, [*arguments, "--help"], prog_name="treadle", env={"COLUMNS": "80"})
    assert result.exit_code == 0
    return result.output


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_the_help_of_a_command_fits_into_80_columns_and_has_an_example(command: str) -> None:
    text = help_of(*command.split())
    assert max(map(len, text.splitlines())) <= 80
    _, _, examples = text.partition("Example:")
    assert f"  treadle {command}" in examples


def test_the_help_lists_every_command() -> None:
    text = help_of()
    for command in COMMANDS:
        assert f"│ {command.split()[0]}" in text


def test_a_command_that_is_not_there_is_told_the_nearest() -> None:
    result = CliRunner().invoke(app, ["trian"], prog_name="treadle", env={"COLUMNS": "80"})
    assert result.exit_code == 2
    assert "No such command 'trian'. Did you mean 'train'?" in result.stderr


def test_the_versions_are_told() -> None:
    told = CliRunner().invoke(app, ["--version"], prog_name="treadle")
    python = platform.python_version()
    assert (told.exit_code, told.stdout) == (
        0,
        f"treadle {version('treadle')}, torch {version('torch')}, Python {python}\n",
    )


@pytest.mark.parametrize("module", ["treadle", "treadle.cli"])
def test_python_runs_the_command_as_a_module(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [module, "resume", "--help"])
    with pytest.raises(SystemExit) as left:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    assert left.value.code == 0
    assert "Usage: treadle resume [OPTIONS]" in capsys.readouterr().out


def test_without_arguments_the_help_is_shown() -> None:
    result = CliRunner().invoke(app, [], prog_name="treadle", env={"COLUMNS": "80"})
    assert "Usage: treadle [OPTIONS] COMMAND [ARGS]..." in result.output


def test_shells_can_complete_commands() -> None:
    environment = {**os.environ, "_TREADLE_COMPLETE": "complete_bash", "COMP_WORDS": "treadle r", "COMP_CWORD": "1"}
    program = "from treadle.cli import app; app(prog_name='treadle')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert sorted(done.stdout.split()) == ["recsys", "report", "resume", "runs"]


def options_of(command: Any) -> set[str]:
    """Return the long options of a command and of those below it."""
    own = {name for option in command.params for name in option.opts if name.startswith("--")}
    below = [options_of(inner) for inner in getattr(command, "commands", {}).values()]
    return own.union(*below)


def test_every_command_and_option_is_on_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    assert [command for command in COMMANDS if f"treadle {command}" not in page] == []
    known = {"--help", "--output", "--best", "--torch", "--install-completion", "--show-completion"}
    assert [name for name in options_of(get_command(app)) - known if f"`{name}" not in page] == []
