"""What holds for every test: nothing waits for the disk, nobody searches what was imported for garbage, and nothing is
left in the checkout.
"""

import gc
import os
import runpy
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.forking.pages import keep_freed_memory, use_large_pages
from tests.logs import forget_logs

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
CACHES = {".pytest_cache", ".hypothesis", ".mypy_cache", ".ruff_cache", "__pycache__"}
"""What tools may leave in the checkout."""
THERE_BEFORE = pytest.StashKey[set[str]]()
RunExample = Callable[..., str]
LONGEST = (
    "tests/parallel/test_plans.py",
    "tests/parallel/test_combined.py",
    "tests/parallel/test_equality.py",
    "tests/parallel/test_choosing.py",
    "tests/docs/test_readme_commands.py",
    "tests/docs/test_tutorial.py",
    "tests/docs/test_recsys_serving.py",
    "tests/docs/test_typing.py",
    "tests/crash/test_kill_points.py",
    "tests/crash/test_random_kills.py",
    "tests/search/test_servers.py",
    "tests/cli/test_interruptions.py",
    "tests/hf/test_lora_kills.py",
    "tests/recsys/trainer/test_processes.py",
    "tests/engine/test_distributed.py",
    "tests/search/test_launchers.py",
    "tests/nas/test_execution.py",
    "tests/docs/test_site.py",
)
"""Files with a test that takes longer than ten seconds: run last, it would keep one worker when the others are done."""


MEMORY = Path("/dev/shm")
ROOM = 4 << 30
"""Bytes of free memory that a run of all tests may be given for its files."""


def pytest_configure() -> None:
    """Look for no garbage while tests are collected: hardly anything that is made then ever becomes some."""
    _keep_files_in_memory()
    gc.disable()
    keep_freed_memory()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell has its background jobs ignore Ctrl-C, and runs that tests start and interrupt would ignore it too.
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _keep_files_in_memory() -> None:
    """Have `tmp_path` lie in memory where there is room: of a small run in a folder, the disk is most of the cost."""
    if sys.platform == "linux" and MEMORY.is_dir() and os.access(MEMORY, os.W_OK):
        room = os.statvfs(MEMORY)
        if room.f_bavail * room.f_frsize >= ROOM and not room.f_flag & os.ST_NOEXEC:
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def pytest_sessionstart(session: pytest.Session) -> None:
    """Note what lies in the checkout, in the one process that sees all tests out."""
    if not hasattr(session.config, "workerinput"):
        session.config.stash[THERE_BEFORE] = _entries()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run whose tests left anything in the checkout: they write into folders of their own."""
    if _left_behind(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say what tests left in the checkout."""
    for name in _left_behind(config):
        terminalreporter.write_line(
            f"ERROR {name} appeared in {ROOT} while the tests ran; have them write into tmp_path", red=True
        )


def _left_behind(config: pytest.Config) -> list[str]:
    return sorted(_entries() - config.stash.get(THERE_BEFORE, _entries()))


def _entries() -> set[str]:
    return {entry.name for entry in os.scandir(ROOT)} - CACHES


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Have workers begin with what takes longest; one process alone runs files in their order."""
    if hasattr(config, "workerinput"):
        ranks = {ROOT / name: rank for rank, name in enumerate(LONGEST)}
        items.sort(key=lambda item: ranks.get(item.path, len(LONGEST)))


def pytest_collection_finish() -> None:
    """Look for garbage among what tests make, and leave modules and tests themselves alone."""
    gc.freeze()
    gc.enable()
    # By default, a search for garbage in all that tests keep (syntax trees, loaded files) comes every few hundred tests
    # and takes a second.
    gc.set_threshold(20_000, 20, 20)
    # Of what is imported by now, every worker that fetches data is a fork.
    use_large_pages()


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_the_disk() -> Iterator[None]:
    """Leave data in the memory of the machine, which outlives every process that is killed here.

    When something is forced out, and what follows where that fails, is tested by functions in the place of this one.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _own_key(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the key that runs are marked with out of the home of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True)
def _own_logs() -> Iterator[None]:
    """Nothing that a test sets up for the log outlives it."""
    yield
    forget_logs()


@pytest.fixture(autouse=True)
def _no_group_of_processes_is_left() -> Iterator[None]:
    """A group of processes that a test's program joined, such as one of a page, is nobody's afterwards."""
    yield
    processes = sys.modules.get("treadle.parallel.processes")
    if processes is not None:
        processes.leave_group()


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
