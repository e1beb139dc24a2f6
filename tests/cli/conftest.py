"""A project to run commands in, and how a command is run: in this process, or as one of its own."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.cli.project import forget_project, make_project
from treadle.cli import app

Treadle = Callable[..., Any]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a project, as the working folder; nothing of it outlives the test."""
    make_project(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setenv("COLUMNS", "80")
    yield tmp_path
    forget_project()


@pytest.fixture
def treadle(project: Path) -> Treadle:
    """A function that runs a command in this process; it must end with the status that is expected."""

    def run(*arguments: str, status: int = 0) -> Any:
        result = CliRunner().invoke(app, arguments, prog_name="treadle")
        assert result.exit_code == status, result.output
        return result

    return run
