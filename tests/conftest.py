"""What holds for every test: nothing waits for the disk, and nobody searches what was imported for garbage."""

import gc
import os
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
RunExample = Callable[..., str]


def pytest_configure() -> None:
    """Look for no garbage while tests are collected: hardly anything that is made then ever becomes some."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Look for garbage among what tests make, and leave modules and tests themselves alone."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_the_disk() -> Iterator[None]:
    """Leave data in the memory of the machine, which outlives every process that is killed here.

    When something is forced out, and what follows where that fails, is tested by functions in the place of this one.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture
def run_example(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> RunExample:
    """A function that runs a program of `examples/` as `__main__`, in this process and an empty folder.

    It takes the name of the program and its arguments, and returns what that prints.
    """

    def run(name: str, *arguments: str) -> str:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [str(EXAMPLES / name), *arguments])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run
