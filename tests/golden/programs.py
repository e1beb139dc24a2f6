"""Sixty programs whose every event, number, key and line is kept in a file, so that a change of the inside shows."""

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from tests.golden import core_programs, door_programs

GOLDEN = Path(__file__).with_name("golden.json")
PROGRAMS = {**core_programs.PROGRAMS, **door_programs.PROGRAMS}


def run(name: str) -> dict[str, Any]:
    """Run a program in an empty folder with a short name, so that no line is broken, and return what it did."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory(prefix="", dir="/tmp") as folder:
            return asdict(PROGRAMS[name](Path(folder)))
    finally:
        torch.set_num_threads(threads)
