"""A process of this machine that has ended is known to be dead; of others nothing is known."""

import hashlib
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from treadle.files import process_identity
from treadle.files.process_identity import process_start
from treadle.parallel.liveness import PeerLiveness, Place
from treadle.parallel.processes import wait_for_threads


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


@pytest.mark.skipif(sys.platform != "linux", reason="whether a thread runs is read in /proc")
def test_a_process_that_ends_waits_for_threads_that_have_something_to_do() -> None:
    begun, done = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        # Half a second of a processor, in a library and without Python's lock.
        hashlib.pbkdf2_hmac("sha256", b"word", b"salt", 500_000)
        done.set()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert begun.wait(60)
    wait_for_threads(120)
    assert done.is_set()
    thread.join()
