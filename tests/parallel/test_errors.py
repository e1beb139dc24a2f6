"""What processes tell each other when one fails, with a store in the place of the one that they meet at."""

import os
import re
import threading
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from treadle.errors import ConfigError, NonFiniteError
from treadle.parallel import Processes, flight_recorder
from treadle.parallel import errors as failing
from treadle.parallel.errors import Board, Failure, Watch, explain, is_timeout
from treadle.parallel.flight_recorder import record_collectives


@pytest.fixture
def boards() -> list[Board]:
    """What two processes see."""
    store = dist.HashStore()  # type: ignore[attr-defined]
    return [Board(store, 0, rank=rank, size=2) for rank in range(2)]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOOK_SECONDS", "HEARD_SECONDS", "PATIENCE_SECONDS"):
        monkeypatch.setattr(failing, name, 0.02)


def test_the_first_failure_is_the_one_that_counts(boards: list[Board]) -> None:
    first, second = Failure(1, "ValueError: bad row", False), Failure(0, "RuntimeError: connection lost", False)
    assert boards[0].look() is None
    assert boards[1].tell(first) == first
    assert boards[0].tell(second) == first
    assert boards[0].look() == boards[1].look() == first


def test_a_process_that_ends_waits_for_a_look_that_is_still_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread inside of torch's store when Python ends aborts the process, though its run came to its end."""
    hooks: list[Any] = []
    monkeypatch.setattr(failing.atexit, "register", hooks.append)
    monkeypatch.setattr(failing.atexit, "unregister", hooks.remove)
    looking, answered = threading.Event(), threading.Event()

    class SlowBoard(Board):
        def look(self) -> Failure | None:
            looking.set()
            assert answered.wait(60)
            return None

    watch = Watch(SlowBoard(dist.HashStore(), 0, rank=0, size=2), None)  # type: ignore[attr-defined]
    assert looking.wait(60)
    watch.stop()
    (at_exit,) = hooks
    threading.Timer(0.2, answered.set).start()
    at_exit()
    assert answered.is_set()
    watch.stop()
    assert hooks == []


def test_an_error_that_followed_from_another_says_from_which(boards: list[Board]) -> None:
    explain(ValueError("bad\nrow"), boards[1], None)
    followed = RuntimeError("connection lost")
    explain(followed, boards[0], None)
    assert followed.__notes__ == ["process 1 failed first: ValueError: bad row"]


@pytest.mark.parametrize("error", [NonFiniteError("loss is nan at step 2"), ValueError("bad row")])
def test_an_error_that_all_raise_together_says_nothing_of_others(boards: list[Board], error: Exception) -> None:
    explain(ValueError("bad row"), boards[1], None)
    explain(error, boards[0], None)
    assert not hasattr(error, "__notes__")


def test_a_process_that_fails_too_keeps_the_first_one_no_longer(
    boards: list[Board], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where all raise the same error, nobody is left who would look for it.
    monkeypatch.setattr(failing, "HEARD_SECONDS", 600.0)
    first = threading.Thread(target=explain, args=(ValueError("bad row"), boards[1], None))
    first.start()
    while boards[0].look() is None:
        first.join(0.01)
    assert first.is_alive()
    explain(NonFiniteError("loss is nan at step 2"), boards[0], None)
    first.join(60)
    assert not first.is_alive()


def test_a_store_that_is_gone_hides_no_error() -> None:
    class Gone:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("connection reset")

    error = ValueError("bad row")
    explain(error, Board(Gone(), 0, rank=1, size=2), None)
    assert not hasattr(error, "__notes__")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError("Timed out waiting 2000ms for recv operation to complete"), True),
        (RuntimeError("Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3)"), True),
        (TimeoutError("rank 0 did not answer; timeout"), True),
        (RuntimeError("Connection closed by peer"), False),
        (ValueError("timeout must be above 0"), False),
    ],
)
def test_a_wait_that_was_too_long_is_known_by_its_message(error: Exception, expected: bool) -> None:
    assert is_timeout(error) is expected


def test_a_process_that_only_lost_another_waits_for_nobody(
    boards: list[Board], monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[Board] = []
    monkeypatch.setattr(Board, "wait_until_heard", lambda board: waited.append(board))
    explain(RuntimeError("[pair.cc:553] Connection closed by peer [127.0.0.1]:35724"), boards[0], None)
    assert waited == []
    explain(ValueError("bad row"), Board(dist.HashStore(), 1, rank=0, size=2), None)  # type: ignore[attr-defined]
    assert len(waited) == 1


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when this process would have been ended."""
    event = threading.Event()
    monkeypatch.setattr(os, "_exit", lambda status: event.set())
    return event


def test_a_process_that_still_waits_for_one_that_failed_is_ended(
    boards: list[Board], ended: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    boards[1].tell(Failure(1, "ValueError: bad row", False))
    watch = Watch(boards[0], None)
    assert ended.wait(30)
    watch.stop()
    assert [record.message for record in caplog.records] == [
        "process 1 failed: ValueError: bad row",
        "process 0 ends: it still waits for process 1, which failed",
    ]


def test_a_process_that_comes_down_by_itself_or_fails_itself_is_left_alone(
    boards: list[Board], ended: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failing, "PATIENCE_SECONDS", 60.0)
    watches = [Watch(board, None) for board in boards]
    explain(ValueError("bad row"), boards[1], None)
    for watch in watches:
        watch.stop()
    assert not ended.wait(0.1)


@pytest.mark.parametrize("timeout", [0, -1, True, float("inf"), "60"])
def test_a_timeout_that_cannot_be_meant_is_refused(timeout: Any) -> None:
    with pytest.raises(ConfigError, match=f"^timeout={re.escape(repr(timeout))} must be a number of seconds above 0$"):
        Processes("cpu", timeout=timeout)


def test_another_timeout_than_the_processes_joined_with_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.parallel.processes._joined_with", [1800.0])
    assert Processes("cpu", timeout=1800).size == 1
    with pytest.raises(ConfigError, match=r"^timeout=60, but the processes have joined with 1800 seconds; give it to"):
        Processes("cpu", timeout=60)


NAMES = ("TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DUMP_ON_TIMEOUT")


def test_torch_is_told_to_remember_collectives_and_where_to_write_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in NAMES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "7")
    record_collectives(tmp_path)
    place = f"{tmp_path}/flight_recorder/rank_"
    assert [os.environ[name] for name in NAMES] == ["7", place, "1"]


def test_a_record_that_cannot_be_written_hides_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "flight_recorder").write_text("in the way")
    assert flight_recorder.keep_record(tmp_path, 0) == ""
    monkeypatch.setattr(flight_recorder, "_dump", lambda form: None)
    assert flight_recorder.keep_record(tmp_path, 0) == ""
