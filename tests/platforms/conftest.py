"""Programs on other systems, as far as this one can pretend to be them."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).with_name("programs.py")


def run_on(system: str, *command: str, status: int = 0) -> str:
    """Return what a program or module prints on a system; on this one if the name is empty."""
    pretended = ["-m", "tests.platforms.pretended", system] if system else []
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, *pretended, *command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def program() -> Callable[..., dict[str, Any]]:
    """Run one of the programs on a system, and return what it says in its last line."""

    def run(system: str, *arguments: object) -> dict[str, Any]:
        said = run_on(system, str(PROGRAMS), *map(str, arguments))
        lines = [line for line in said.splitlines() if line.startswith("{")]
        found: dict[str, Any] = json.loads(lines[-1])
        return found

    return run
