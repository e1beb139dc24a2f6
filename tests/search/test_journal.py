"""The journal: whole lines only, whoever is killed; one writer at a time; nothing waits for a dead one."""

import json
import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest

from treadle.search.store import journal as journal_module
from treadle.search.store.journal import Journal


def logs(count: int, begin: int = 0) -> list[dict[str, Any]]:
    return [{"op_code": 8, "number": number} for number in range(begin, begin + count)]


def test_logs_are_read_in_the_order_they_were_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "deep" / "trials.journal")
    journal.append_logs(logs(2))
    journal.append_logs(logs(1, begin=2))
    assert list(journal.read_logs(0)) == logs(3)
    assert list(journal.read_logs(2)) == logs(1, begin=2)
    assert list(journal.read_logs(3)) == []
    journal.append_logs(logs(1, begin=3))
    assert list(journal.read_logs(3)) == logs(1, begin=3)
    journal.close()


def test_another_reader_sees_what_was_written(tmp_path: Path) -> None:
    one, two = Journal(tmp_path / "x"), Journal(tmp_path / "x")
    one.append_logs(logs(1))
    assert list(two.read_logs(0)) == logs(1)
    two.append_logs(logs(1, begin=1))
    assert list(one.read_logs(0)) == logs(2)


def test_a_line_that_was_cut_short_is_not_read_and_is_removed_by_the_next_writer(tmp_path: Path) -> None:
    path = tmp_path / "x"
    journal = Journal(path)
    journal.append_logs(logs(2))
    with path.open("ab") as file:
        file.write(b'{"op_code": 8, "num')
    assert list(journal.read_logs(0)) == logs(2)
    fresh = Journal(path)
    assert list(fresh.read_logs(0)) == logs(2)
    fresh.append_logs(logs(1, begin=2))
    assert [json.loads(line) for line in path.read_text().splitlines()] == logs(3)
    assert list(journal.read_logs(2)) == logs(1, begin=2)


def test_a_file_that_is_nothing_but_a_part_of_a_line_is_emptied(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"x" * (journal_module.CHUNK + 10))
    journal = Journal(path)
    assert list(journal.read_logs(0)) == []
    journal.append_logs(logs(1))
    assert list(journal.read_logs(0)) == logs(1)


def test_a_write_that_fails_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "x")
    journal.append_logs(logs(1))
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, text: write(file, text[:5]))
    with pytest.raises(OSError, match=r"x: only 5 of \d+ bytes could be written$"):
        journal.append_logs(logs(1, begin=1))
    monkeypatch.undo()
    journal.append_logs(logs(1, begin=1))
    assert list(journal.read_logs(0)) == logs(2)


def _write_many(path: Path, begin: int) -> None:
    journal = Journal(path)
    for number in range(begin, begin + 50):
        journal.append_logs(logs(1, begin=number))


def test_processes_that_write_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    # Forks begin together; of those that import everything first, one may be done before another begins.
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write_many, args=(tmp_path / "x", 100 * place)) for place in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    found = sorted(log["number"] for log in Journal(tmp_path / "x").read_logs(0))
    assert found == [100 * place + number for place in range(3) for number in range(50)]


def test_the_lock_of_a_process_that_is_gone_is_free(tmp_path: Path) -> None:
    # The system frees it with the file: there is nothing left behind that others would have to wait for.
    journal = Journal(tmp_path / "x")
    with journal.exclusive():
        os.close(journal._file)
        journal._file = os.open(journal.path, os.O_RDWR | os.O_APPEND)
        Journal(tmp_path / "x").append_logs(logs(1))
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


FINISHED = {"op_code": 6, "state": 1}


def synced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows with every wait for the disk."""
    calls: list[int] = []
    monkeypatch.setattr(os, "fsync", calls.append)
    return calls


def test_the_end_of_a_trial_waits_for_the_disk_and_nothing_else_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "x")
    calls = synced(monkeypatch)
    journal.append_logs(logs(3))
    journal.append_logs([{"op_code": 4, "state": 0}, {"op_code": 6, "state": 0}])
    assert len(calls) == 0
    journal.append_logs([FINISHED])
    assert len(calls) == 1


@pytest.mark.parametrize("log", [{"op_code": 0}, {"op_code": 4, "state": 1}, {"op_code": 6, "state": 3}], ids=str)
def test_a_new_study_and_every_kind_of_end_are_worth_waiting_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: dict[str, Any]
) -> None:
    journal = Journal(tmp_path / "x")
    calls = synced(monkeypatch)
    journal.append_logs([log])
    assert len(calls) == 1


def test_ends_that_come_quickly_share_a_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(journal_module.time, "monotonic", lambda: clock[0])
    journal = Journal(tmp_path / "x")
    calls = synced(monkeypatch)
    for clock[0] in (0.0, 0.01, 0.02, 0.05, 0.11):
        journal.append_logs([FINISHED])
    assert len(calls) == 2  # at 0.0 and at 0.11
    journal.append_logs([FINISHED])
    journal.close()
    assert len(calls) == 3
