"""A project to run commands in, and how a command is run: in this process, or as one of its own."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.project import inside
from tests.cli.project import treadle as run_treadle

Treadle = Callable[..., Any]


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """The folder of a project, as the working folder; nothing of it outlives the test."""
    with inside(tmp_path) as folder:
        yield folder


@pytest.fixture
def treadle(project: Path) -> Treadle:
    """A function that runs a command in this process; it must end with the status that is expected."""
    return run_treadle
