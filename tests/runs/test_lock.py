"""One run at a time in a folder, behind every door; a lock that nobody holds any longer stops nobody."""

import errno
import fcntl
import json
import logging
import os
import platform
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engine.parts import make_config
from tests.interrupting import CutAt, CutError, contents, make_trainer, metric_lines, samples
from tests.lightning.test_step_trainer import Line, loader
from tests.nas.small import make as make_search
from tests.nas.small import small
from tests.recsys.trainer.runs import make as make_recommender
from treadle import nas
from treadle.callback import TrainerCallback
from treadle.engine import DefaultTrainer
from treadle.errors import CheckpointError, StopTrainingError
from treadle.files.process_identity import machine, process_start
from treadle.lightning import StepTrainer
from treadle.runs import lock
from treadle.runs.lock import RunLock, run_lock
from treadle.runs.status import LOCK, STATUS, RunStatus, is_locked, read_status, write_status


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "PATIENCE", 0.0)


@contextmanager
def held_by_another(folder: Path) -> Iterator[int]:
    """Let another process train in a folder meanwhile; yield its number."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        lock = RunLock(folder)
        os.write(writing, b"1")
        os.close(writing)
        os.read(os.pipe()[0], 1)
        lock.end("never")
    os.close(writing)
    try:
        os.read(reading, 1)
        yield child
    finally:
        os.close(reading)
        os.kill(child, 9)
        os.waitpid(child, 0)


def train(folder: Path, tmp_path: Path) -> None:
    make_trainer(folder).train(samples(), 1, resume="auto")


def train_steps(folder: Path, tmp_path: Path) -> None:
    StepTrainer(num_epochs=1, progress=False, device="cpu", run_dir=folder).fit(Line(), loader(), resume="auto")


def train_config(folder: Path, tmp_path: Path) -> None:
    DefaultTrainer(make_config(folder, train_iter=1, resume=True)).train()


def train_recommender(folder: Path, tmp_path: Path) -> None:
    make_recommender(tmp_path, run_dir=str(folder), epochs=1).fit()


def search(folder: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    make_search(nas.DartsTrainer, small(), run_dir=folder, num_epochs=1).fit(resume="auto")


DOORS = [train, train_steps, train_config, train_recommender, search]


@pytest.mark.parametrize("door", DOORS)
def test_a_folder_in_which_another_process_trains_is_refused_by_every_door(
    tmp_path: Path, door: Callable[[Path, Path], None]
) -> None:
    run = tmp_path / "run"
    with held_by_another(run) as process:
        before = contents(run)
        with pytest.raises(CheckpointError) as caught:
            door(run, tmp_path)
        assert str(caught.value) == (
            f"{run} is in use: process {process} on {platform.node()} trains in it; wait for its end, stop it, or "
            "choose another folder"
        )
        assert {name: text for name, text in contents(run).items() if name != "log.txt"} == before
    # Its process was killed, and that is all it takes.
    door(run, tmp_path)
    status = read_status(run)
    assert status is not None
    assert (status.state, status.pid) == ("finished", os.getpid())
    assert not is_locked(run)


def test_a_lock_that_somebody_removed_does_not_let_a_second_run_in(tmp_path: Path) -> None:
    with held_by_another(tmp_path) as process:
        (tmp_path / LOCK).unlink()
        assert is_locked(tmp_path)
        with pytest.raises(CheckpointError, match=f"process {process} on .* trains in it"):
            RunLock(tmp_path)
        assert is_locked(tmp_path)  # by a file that was made anew, too
    assert not is_locked(tmp_path)
    RunLock(tmp_path).end("finished")


class Another(TrainerCallback):
    """Starts another run in the folder of this one."""

    def __init__(self, run: Path, *, in_thread: bool = False) -> None:
        self.run, self.in_thread = run, in_thread
        self.refused: list[str] = []

    def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
        if trainer.progress.step == 2:
            thread = threading.Thread(target=self._start)
            (thread.start if self.in_thread else self._start)()
            if self.in_thread:
                thread.join()

    def _start(self) -> None:
        try:
            train(self.run, self.run)
        except CheckpointError as error:
            self.refused.append(str(error))


@pytest.mark.parametrize("in_thread", [False, True], ids=["in a callback", "in a thread"])
def test_a_second_run_of_the_same_process_is_refused(tmp_path: Path, in_thread: bool) -> None:
    another = Another(tmp_path / "run", in_thread=in_thread)
    trainer = make_trainer(tmp_path / "run", another)
    trainer.train(samples(), 2, log_every=1)
    assert trainer.progress.step == 6
    assert [text.partition("; ")[0] for text in another.refused] == [
        f"{tmp_path / 'run'} is in use: this process trains in it already"
    ]
    assert [line["step"] for line in metric_lines(tmp_path / "run")] == [1, 2, 3, 4, 5, 6]


def test_a_process_forked_from_a_run_neither_holds_its_folder_nor_gets_it(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    child = os.fork()
    if not child:
        try:
            RunLock(tmp_path)
        except CheckpointError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert is_locked(tmp_path)
    lock.end("finished")
    assert not is_locked(tmp_path)


def test_who_reads_the_files_of_a_folder_does_not_give_it_away(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    (tmp_path / LOCK).read_bytes()
    assert is_locked(tmp_path)
    child = os.fork()
    if not child:
        os._exit(int(is_locked(tmp_path)))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    lock.end("finished")


def test_a_run_that_was_refused_leaves_what_is_known_of_the_one_before(tmp_path: Path) -> None:
    train(tmp_path, tmp_path)
    before = (tmp_path / STATUS).read_text()
    with pytest.raises(CheckpointError, match="already holds a run"):
        make_trainer(tmp_path).train(samples(), 1)
    with pytest.raises(CheckpointError, match="is another one"):
        make_trainer(tmp_path).train(samples(8), 1, resume="auto")
    assert (tmp_path / STATUS).read_text() == before
    assert not is_locked(tmp_path)


class Stop(TrainerCallback):
    def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
        raise StopTrainingError("enough")


@pytest.mark.parametrize(
    ("callback", "state", "message"),
    [(None, "finished", ""), (Stop(), "finished", ""), (CutAt(2), "failed", "CutError: cut at step 2")],
)
def test_the_status_of_a_run_says_how_it_ended(tmp_path: Path, callback: Any, state: str, message: str) -> None:
    with suppress(CutError):
        make_trainer(tmp_path, *([] if callback is None else [callback])).train(samples(), 1)
    status = read_status(tmp_path)
    assert status is not None
    assert (status.state, status.message, status.processes) == (state, message, 1)


def test_a_folder_is_held_until_its_last_checkpoint_is_written(tmp_path: Path) -> None:
    lock, written = RunLock(tmp_path), threading.Event()
    writer = threading.Thread(target=written.wait)
    writer.start()
    lock.hold_for(writer)
    lock.end("stopped")
    assert is_locked(tmp_path)
    with pytest.raises(CheckpointError, match="this process trains in it already"):
        RunLock(tmp_path)
    written.set()
    for thread in threading.enumerate():
        if thread.name == "treadle-run-lock":
            thread.join()
    assert not is_locked(tmp_path)
    status = read_status(tmp_path)
    assert status is not None
    assert status.state == "stopped"


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def read_only(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return opened(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(CheckpointError, match=r"cannot be written: .*Read-only file system.*; choose another folder"):
        train(tmp_path / "run", tmp_path)


# Others ---------------------------------------------------------------------------------------------------


def running(**facts: Any) -> RunStatus:
    """What this process would say of itself while it trains."""
    own = RunStatus("running", pid=os.getpid(), host=platform.node(), machine=machine())
    return replace(own, **{"started": process_start(os.getpid()) or "", **facts})


GONE = {
    "its process is gone": {"pid": 2**22 - 3},
    "its number is another process's": {"started": "1"},
    "the machine was started anew": {"machine": f"{platform.node()}:another"},
}
ELSEWHERE = {"pid": 17, "host": "node7", "machine": "node7:1"}


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without locks, as some network file systems are."""

    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)


@pytest.mark.usefixtures("no_locks")
@pytest.mark.parametrize("why", GONE)
def test_without_locks_a_run_that_is_gone_is_recognised_and_the_lack_is_told(
    tmp_path: Path, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    write_status(tmp_path, running(**GONE[why]))
    assert not is_locked(tmp_path)
    with caplog.at_level(logging.WARNING):
        train(tmp_path, tmp_path)
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        f"{tmp_path} is on a file system without locks (No locks available): start no second run in it from another "
        "machine"
    ]


@pytest.mark.usefixtures("no_locks")
def test_without_locks_a_process_of_this_machine_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / LOCK).touch()
    parent = os.getppid()
    write_status(tmp_path, running(pid=parent, started=process_start(parent)))
    assert is_locked(tmp_path)
    with pytest.raises(CheckpointError, match=f"is in use: process {parent} on {platform.node()} trains in it"):
        train(tmp_path, tmp_path)


@pytest.mark.usefixtures("no_locks")
def test_without_locks_a_run_on_another_machine_is_believed_and_the_remedy_is_told(tmp_path: Path) -> None:
    write_status(tmp_path, running(**ELSEWHERE))
    with pytest.raises(CheckpointError) as caught:
        train(tmp_path, tmp_path)
    assert str(caught.value) == (
        f"{tmp_path} is in use: process 17 on node7 trains in it; wait for its end, stop it, or choose another folder; "
        f"if it is gone for good and the lock is not, remove {tmp_path / LOCK} and {tmp_path / STATUS}"
    )
    (tmp_path / STATUS).unlink()
    train(tmp_path, tmp_path)


def test_a_run_on_another_machine_that_holds_no_lock_any_longer_is_gone_on_with_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_status(tmp_path, running(**ELSEWHERE))
    with caplog.at_level(logging.WARNING):
        train(tmp_path, tmp_path)
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        f"process 17 on node7 trained in {tmp_path} and never said that it ended; its lock is gone, so this process "
        "takes over. If it still runs, stop one of the two"
    ]


class Rank:
    """One of several processes, with what the first one told."""

    size = 2

    def __init__(self, rank: int, told: str = "") -> None:
        self.is_main, self._told = rank == 0, told

    def share(self, value: Any) -> Any:
        return value if self.is_main else self._told


def test_the_ranks_of_a_run_share_its_lock_and_refuse_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    with run_lock(tmp_path, Rank(0)), run_lock(tmp_path, Rank(1)):  # type: ignore[arg-type]
        status = json.loads((tmp_path / STATUS).read_text())
        assert (status["processes"], status["processes_here"]) == (2, 1)
    with pytest.raises(CheckpointError, match="is in use"), run_lock(tmp_path, Rank(1, "is in use")):  # type: ignore[arg-type]
        pass


def test_a_status_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    known = {name: value for name, value in asdict(running(state="stopped")).items() if name != "machine"}
    (tmp_path / STATUS).write_text(json.dumps(known))
    status = read_status(tmp_path)
    assert status is not None
    assert (status.state, status.machine) == ("stopped", "")
