"""Programs on other systems, as far as this one can pretend to be them."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest

from tests.forking.starting import run, start

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).with_name("programs.py")


def start_on(system: str, *command: str, stdout: IO[Any] | None = None) -> Any:
    """Start a program or module on a system."""
    return start(*_pretended(system, *command), stdout=stdout, cwd=ROOT, env=_environment(), without_treadle=True)


def run_on(system: str, *command: str, status: int = 0) -> str:
    """Return what a program or module prints on a system; on this one if the name is empty."""
    arguments = _pretended(system, *command)
    done = run(*arguments, cwd=ROOT, env=_environment(), timeout=280, without_treadle=True)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def _pretended(system: str, *command: str) -> list[str]:
    return ["-m", "tests.platforms.pretended", system or "this", *command]


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "200"}


@pytest.fixture
def program() -> Callable[..., dict[str, Any]]:
    """Run one of the programs on a system, and return what it says in its last line."""

    def run(system: str, *arguments: object) -> dict[str, Any]:
        said = run_on(system, str(PROGRAMS), *map(str, arguments))
        lines = [line for line in said.splitlines() if line.startswith("{")]
        found: dict[str, Any] = json.loads(lines[-1])
        return found

    return run
