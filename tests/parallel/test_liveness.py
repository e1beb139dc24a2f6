"""A process of this machine that has ended is known to be dead; of others nothing is known."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from treadle.files import process_identity
from treadle.files.process_identity import process_start
from treadle.parallel.liveness import PeerLiveness, Place


class Gathered:
    """Stands for the processes of a run: this one, and others at the places given."""

    def __init__(self, *others: Place) -> None:
        self._others = list(others)

    def gather_objects(self, own: Any) -> list[Any]:
        return [own, *self._others]


def place(pid: int, **changes: Any) -> Place:
    """Return where a process of this machine is, but for some changes."""
    own = PeerLiveness(Gathered())._own  # type: ignore[arg-type]
    return Place(own.machine, pid, process_start(pid))._replace(**changes)


@pytest.fixture
def child() -> Any:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def test_a_process_may_live_until_it_has_ended_even_unburied(child: Any) -> None:
    known = PeerLiveness(Gathered(place(child.pid)))  # type: ignore[arg-type]
    assert known.may_live(0)
    assert known.may_live(1)
    child.kill()
    # It is dead, and in the table of processes until its parent takes notice.
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not known.may_live(1)
    child.wait()
    assert not known.may_live(1)
    assert known.may_live(0)


def test_another_process_with_the_number_of_a_dead_one_is_not_taken_for_it(child: Any) -> None:
    known = PeerLiveness(Gathered(place(child.pid, began="0")))  # type: ignore[arg-type]
    assert not known.may_live(1)


def test_a_process_of_another_machine_may_always_live() -> None:
    known = PeerLiveness(Gathered(place(2**22 + 1, machine="elsewhere")))  # type: ignore[arg-type]
    assert known.may_live(1)


def test_it_works_where_there_is_no_table_of_processes(
    child: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_identity, "TABLE", tmp_path)
    known = PeerLiveness(Gathered(place(child.pid)))  # type: ignore[arg-type]
    assert known.may_live(1)
    child.kill()
    child.wait()
    assert not known.may_live(1)
