"""Runs to damage."""

import shutil
from pathlib import Path

import pytest

from tests.checkpoint.faults.damaged_runs import train


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with checkpoints of the steps 3, 6 and 9; to be left as it is."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    train(folder)
    return folder


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Path:
    """A copy of that run, to be damaged."""
    return Path(shutil.copytree(finished_run, tmp_path / "run"))
