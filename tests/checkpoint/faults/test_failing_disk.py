"""A checkpoint that cannot be written stops the run, or does not, as its policy says; nothing else ever does."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.checkpoint.faults.damaged_runs import store_of, train, wide_trainer
from tests.checkpoint.faults.failing_disk import FailingDisk, no_file_larger_than
from tests.interrupting import assert_same_run, metric_lines, samples, updates_of
from treadle.callback import TrainerCallback
from treadle.checkpoint import CheckpointStore, Policy, Saver
from treadle.errors import CheckpointError
from treadle.runs import provenance

MakeDisk = Callable[[int], FailingDisk]

OPERATIONS = {
    "making the folder": ("mkdir", ".part_*"),
    "writing the tensors": ("save_file", "rank_0.safetensors"),
    "writing the rest": ("write_text", "rank_0.json"),
    "forcing the tensors out": ("fsync", "rank_0.safetensors"),
    "saying that the part is done": ("replace", "rank_0.done"),
    "writing the manifest": ("write_text", ".part_*/*/manifest.json"),
    "forcing the folder out": ("fsync", ".part_*"),
    "giving it its name": ("replace", "step_*"),
    "forcing the name out": ("fsync", "checkpoints"),
    "pointing at it": ("replace", "checkpoints/last"),
}
ERRORS = {"disk full": errno.ENOSPC, "permission denied": errno.EACCES, "read-only": errno.EROFS, "broken": errno.EIO}
SLOTS = [("disk full", operation) for operation in OPERATIONS]
SLOTS += [(error, "giving it its name") for error in ERRORS if error != "disk full"]


@pytest.fixture
def make_disk(monkeypatch: pytest.MonkeyPatch) -> MakeDisk:
    return lambda error: FailingDisk(monkeypatch, error)


class Events(TrainerCallback):
    """Breaks and heals the disk after some updates, once each, and waits for the thread that writes after each."""

    def __init__(self, **actions: Callable[[], None]) -> None:
        self._actions = {int(name.removeprefix("after_")): action for name, action in actions.items()}

    def on_update_start(self, trainer: Any, **kwargs: Any) -> None:
        if trainer.this_run.checkpointer._saver._thread is not None:
            trainer.this_run.checkpointer._saver._thread.join()
        self._actions.pop(trainer.progress.step, lambda: None)()


@pytest.mark.parametrize("asynchronous", [True, False], ids=["asynchronous", "synchronous"])
@pytest.mark.parametrize(("error", "operation"), SLOTS)
def test_told_to_warn_a_run_goes_on_and_saves_again_when_the_disk_is_well(
    error: str,
    operation: str,
    asynchronous: bool,
    tmp_path: Path,
    make_disk: MakeDisk,
    capsys: pytest.CaptureFixture[str],
) -> None:
    disk = make_disk(ERRORS[error])
    events = Events(after_2=lambda: disk.refuse(*OPERATIONS[operation]), after_8=disk.heal)
    policy = Policy(keep_last=None, on_error="warn", asynchronous=asynchronous)
    trainer = train(tmp_path / "run", events, checkpoints=policy)
    assert len(disk.refused) >= 2
    said = f"continuing without a checkpoint: cannot write the checkpoint of step 3 into {tmp_path / 'run'}"
    assert said in capsys.readouterr().out
    assert_same_run(trainer, train(None))
    # Those whose last name could not be forced out, or that nothing points at, are there all the same.
    late = operation in ("forcing the name out", "pointing at it")
    assert store_of(tmp_path / "run").steps() == ([3, 6, 9] if late else [9])
    assert store_of(tmp_path / "run").newest_good() == store_of(tmp_path / "run").pointer("last") == 9
    assert list((tmp_path / "run" / "checkpoints").glob(".*")) == []


@pytest.mark.parametrize("asynchronous", [True, False], ids=["asynchronous", "synchronous"])
@pytest.mark.parametrize(("error", "operation"), SLOTS)
def test_by_default_a_run_stops_at_the_next_step_and_can_go_on_later(
    error: str, operation: str, asynchronous: bool, tmp_path: Path, make_disk: MakeDisk
) -> None:
    disk = make_disk(ERRORS[error])
    events = Events(after_5=lambda: disk.refuse(*OPERATIONS[operation]))
    policy = Policy(keep_last=None, asynchronous=asynchronous)
    trainer = wide_trainer(tmp_path / "run", events, checkpoints=policy)
    with pytest.raises(CheckpointError, match=r"cannot write the checkpoint of step 6 into .*run"):
        trainer.train(samples(), 3)
    # Written by a thread, it fails while the next update is made.
    assert trainer.progress.step == (7 if asynchronous else 6)
    disk.heal()
    saved = store_of(tmp_path / "run").newest_good()
    assert saved in (3, 6)
    resumed = train(tmp_path / "run")
    assert updates_of(resumed) == (saved, 9 - saved)
    assert_same_run(resumed, train(None))
    assert [line["step"] for line in metric_lines(tmp_path / "run")] == [3, 6, 9]


@pytest.mark.parametrize("asynchronous", [True, False], ids=["asynchronous", "synchronous"])
def test_a_run_whose_disk_takes_nothing_at_all_still_ends(
    asynchronous: bool, tmp_path: Path, make_disk: MakeDisk
) -> None:
    disk = make_disk(errno.ENOSPC)

    def break_everything() -> None:
        for operation in ("mkdir", "write_text", "replace", "fsync", "save_file", "rmtree", "unlink"):
            disk.refuse(operation)

    policy = Policy(on_error="warn", asynchronous=asynchronous)
    trainer = train(tmp_path / "run", Events(after_4=break_everything), checkpoints=policy)
    disk.heal()
    assert_same_run(trainer, train(None))
    assert store_of(tmp_path / "run").newest_good() == 3
    resumed = train(tmp_path / "run")
    assert updates_of(resumed) == (3, 6)
    assert_same_run(resumed, train(None))


@pytest.mark.parametrize("asynchronous", [True, False], ids=["asynchronous", "synchronous"])
@pytest.mark.parametrize("operation", ["writing the tensors", "writing the manifest", "giving it its name"])
def test_a_disk_that_is_full_when_the_run_ends_costs_its_last_checkpoint_only(
    operation: str, asynchronous: bool, tmp_path: Path, make_disk: MakeDisk, capsys: pytest.CaptureFixture[str]
) -> None:
    disk = make_disk(errno.ENOSPC)
    events = Events(after_8=lambda: disk.refuse(*OPERATIONS[operation]))
    policy = Policy(keep_last=None, on_error="warn", asynchronous=asynchronous)
    trainer = train(tmp_path / "run", events, checkpoints=policy)
    assert_same_run(trainer, train(None))
    assert "continuing without a checkpoint: cannot write the checkpoint of step 9" in capsys.readouterr().out
    disk.heal()
    assert store_of(tmp_path / "run").newest_good() == 6
    resumed = train(tmp_path / "run")
    assert updates_of(resumed) == (6, 3)
    assert_same_run(resumed, train(None))
    assert store_of(tmp_path / "run").manifest(9, verify=True)["finished"]
    assert list((tmp_path / "run" / "checkpoints").glob(".*")) == []


@pytest.mark.parametrize("asynchronous", [True, False], ids=["asynchronous", "synchronous"])
def test_by_default_a_disk_that_is_full_when_the_run_ends_is_an_error_and_the_trainer_stays_usable(
    asynchronous: bool, tmp_path: Path, make_disk: MakeDisk
) -> None:
    disk = make_disk(errno.ENOSPC)
    events = Events(after_8=lambda: disk.refuse(*OPERATIONS["writing the tensors"]))
    trainer = wide_trainer(tmp_path / "run", events, checkpoints=Policy(keep_last=None, asynchronous=asynchronous))
    with pytest.raises(CheckpointError, match=r"cannot write the checkpoint of step 9 .*No space"):
        trainer.train(samples(), 3)
    whole = train(None)
    assert torch.equal(trainer.model[0].weight, whole.model[0].weight)
    disk.heal()
    assert trainer.train(samples(), 3, resume="auto").steps == 9
    assert_same_run(trainer, whole)


@pytest.fixture
def short_manifest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps the files of all tests that this process has imported out of the manifest, which is to fit on the disk."""
    monkeypatch.setattr(provenance, "code", lambda: {})


@pytest.mark.usefixtures("short_manifest")
def test_a_write_that_the_system_cuts_in_the_middle_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    with no_file_larger_than(20_000):
        trainer = train(tmp_path / "run", checkpoints=Policy(on_error="warn"))
    assert_same_run(trainer, train(None))
    assert store_of(tmp_path / "run").steps() == []
    assert_same_run(train(tmp_path / "run"), train(None))


def test_old_checkpoints_that_cannot_be_removed_stop_no_run(
    tmp_path: Path, make_disk: MakeDisk, caplog: pytest.LogCaptureFixture
) -> None:
    make_disk(errno.EACCES).refuse("replace", ".part_old_*")
    train(tmp_path / "run", checkpoints=Policy(keep_last=1))
    assert store_of(tmp_path / "run").steps() == [0, 3, 6, 9]
    assert "cannot remove the old checkpoint" in caplog.text


def test_a_damaged_checkpoint_that_cannot_be_set_aside_is_named(run: Path, make_disk: MakeDisk) -> None:
    (run / "checkpoints" / "step_00000009" / "rank_0.json").unlink()
    make_disk(errno.EACCES).refuse("replace", "damaged_*")
    with pytest.raises(CheckpointError, match=r"cannot go back to step 6: .*; remove .*step_00000009"):
        train(run)


@pytest.mark.parametrize(
    ("operation", "pattern", "message"),
    [
        ("mkdir", "checkpoints", r"the run folder .* cannot be written: .*No space"),
        ("write_text", "config.yaml", r"cannot write .*config\.yaml: .*No space"),
        ("write_text", "run/*/manifest.json", r"cannot write .*run/manifest\.json: .*No space"),
    ],
)
def test_a_run_that_cannot_write_its_first_files_says_so_when_it_starts(
    tmp_path: Path, make_disk: MakeDisk, operation: str, pattern: str, message: str
) -> None:
    make_disk(errno.ENOSPC).refuse(operation, pattern)
    with pytest.raises(CheckpointError, match=message):
        train(tmp_path / "run")


def test_pointers_that_cannot_be_mended_are_an_error_of_ours(run: Path, make_disk: MakeDisk) -> None:
    (run / "checkpoints" / "last").write_text("")
    make_disk(errno.ENOSPC).refuse("replace", "checkpoints/last")
    with pytest.raises(CheckpointError, match=r"cannot write the pointers in .*checkpoints: .*No space"):
        train(run)


def test_metrics_that_cannot_be_opened_are_an_error_of_ours(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Path.open

    def refuse(path: Path, *args: Any, **kwargs: Any) -> Any:
        if path.name == "metrics.jsonl":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return original(path, *args, **kwargs)

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(CheckpointError, match=r"the metrics of the run cannot be written: .*Permission denied"):
        train(run)


@pytest.mark.usefixtures("short_manifest")
def test_a_log_on_a_full_disk_stops_no_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "log.txt").symlink_to("/dev/full")
    with no_file_larger_than(20_000):
        train(tmp_path / "run", checkpoints=Policy(on_error="warn"))
    assert "log.txt lacks a line that the console showed" in caplog.text


class HalfFullFile:
    """A file that takes some bytes and then no more, until it is emptied a little."""

    def __init__(self, file: Any, room: int) -> None:
        self._file, self.room = file, room

    def write(self, data: bytes) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = self._file.write(data[: self.room])
        self.room -= taken
        return int(taken)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def test_lines_of_metrics_wait_for_a_full_disk_and_none_is_lost_or_torn(tmp_path: Path) -> None:
    class FillUp(TrainerCallback):
        def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
            if trainer.progress.step == 4:
                trainer.this_run.checkpointer._metrics_file._file = HalfFullFile(
                    trainer.this_run.checkpointer._metrics_file._file, room=100
                )
            if trainer.progress.step == 8:
                trainer.this_run.checkpointer._metrics_file._file.room = 100_000

    trainer = wide_trainer(tmp_path / "run", FillUp, checkpoints=Policy(on_error="warn"))
    trainer.train(samples(), 3, log_every=1)
    assert [line["step"] for line in metric_lines(tmp_path / "run")] == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    # The one in the middle could not have said where the lines end.
    assert store_of(tmp_path / "run").steps() == [3, 9]


def test_metrics_that_cannot_be_written_stop_a_run_at_its_next_checkpoint(tmp_path: Path) -> None:
    class FillUp(TrainerCallback):
        def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
            if trainer.progress.step == 4:
                trainer.this_run.checkpointer._metrics_file._file = HalfFullFile(
                    trainer.this_run.checkpointer._metrics_file._file, room=10
                )

    trainer = wide_trainer(tmp_path / "run", FillUp)
    with pytest.raises(CheckpointError, match=r"cannot write the metrics of the run to .*metrics\.jsonl: .*No space"):
        trainer.train(samples(), 3, log_every=1)
    assert trainer.progress.step == 6
    resumed = wide_trainer(tmp_path / "run")
    resumed.train(samples(), 3, log_every=1, resume="auto")
    assert updates_of(resumed) == (3, 6)
    assert [line["step"] for line in metric_lines(tmp_path / "run")] == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_the_first_rank_does_not_wait_for_one_that_could_not_write(tmp_path: Path, make_disk: MakeDisk) -> None:
    first, second = (CheckpointStore(tmp_path, Policy(), rank=rank, size=2) for rank in range(2))
    disk = make_disk(errno.ENOSPC)
    disk.refuse("save_file", "rank_1.safetensors")
    with pytest.raises(CheckpointError, match=r"cannot write the checkpoint of step 5 .*No space"):
        second.write(5, {}, {}, {}, "a")
    with pytest.raises(CheckpointError, match="rank 1 could not write its part"):
        first.write(5, {}, {}, {}, "a")
    assert list(tmp_path.iterdir()) == []
    disk.heal()
    second.write(6, {}, {}, {}, "a")
    first.write(6, {}, {}, {}, "a")
    assert first.newest_good() == 6
    assert sorted(json.loads((first.path(6) / "manifest.json").read_text())["files"]) == [
        "rank_0.json",
        "rank_0.safetensors",
        "rank_1.json",
        "rank_1.safetensors",
    ]


def test_the_first_rank_stops_waiting_for_one_that_died_when_its_run_is_over(tmp_path: Path) -> None:
    saver = Saver(CheckpointStore(tmp_path, Policy(), size=2), "a", lambda: None)
    saver.save(5, {"tensor": torch.zeros(3)}, {})
    saver.abandon(0)
    with pytest.raises(CheckpointError, match=r"cannot write the checkpoint of step 5 .*: rank 1 wrote no part"):
        saver.wait()
    assert list(tmp_path.iterdir()) == []


def test_the_first_rank_does_not_wait_for_one_that_is_known_to_be_dead(tmp_path: Path) -> None:
    first = CheckpointStore(tmp_path, Policy(), size=2, may_live=lambda rank: rank == 0)
    with pytest.raises(CheckpointError, match=r"step 5 .*: rank 1 died before it had written its part"):
        first.write(5, {}, {}, {}, "a")
    assert list(tmp_path.iterdir()) == []


def test_a_part_that_was_complete_when_its_rank_died_is_used(tmp_path: Path) -> None:
    CheckpointStore(tmp_path, Policy(), rank=1, size=2).write(5, {}, {}, {}, "a")
    first = CheckpointStore(tmp_path, Policy(), size=2, may_live=lambda rank: rank == 0)
    first.write(5, {}, {}, {}, "a")
    assert first.newest_good() == 5


def test_a_state_that_one_rank_could_not_save_is_not_waited_for_and_puts_no_rank_behind(tmp_path: Path) -> None:
    savers = [
        Saver(CheckpointStore(tmp_path, Policy(asynchronous=False), rank=rank, size=2), "a", lambda: None)
        for rank in (1, 0)
    ]
    with pytest.raises(CheckpointError, match="a checkpoint cannot hold"):
        savers[0].save(5, {"number": object()}, {})
    with pytest.raises(CheckpointError, match="rank 1 could not write its part"):
        savers[1].save(5, {"number": 1}, {})
    for saver in savers:
        saver.save(6, {"number": 2}, {})
    assert savers[1].store.newest_good() == 6


def test_a_rank_that_is_ahead_does_not_write_into_a_part_that_is_being_committed(tmp_path: Path) -> None:
    first, second = (CheckpointStore(tmp_path, Policy(), rank=rank, size=2) for rank in range(2))
    # The same step twice: after its update, and again at the end of its epoch, which was the best so far.
    for number, facts in enumerate(({"epoch": 0}, {"epoch": 1, "best": True})):
        second.write(4, {"number": number}, {}, facts, "a", number)
    for number, facts in enumerate(({"epoch": 0}, {"epoch": 1, "best": True})):
        first.write(4, {"number": number}, {}, facts, "a", number)
        assert first.newest_good() == 4
        assert [first.read(4, rank=rank)["number"] for rank in range(2)] == [number, number]


def test_a_part_that_nobody_waited_for_is_cleared_with_the_next_checkpoint(tmp_path: Path) -> None:
    first, second = (CheckpointStore(tmp_path, Policy(), rank=rank, size=2) for rank in range(2))
    # The same step is saved for the third time before the first rank is there: that part is needed.
    for number, step in enumerate((5, 6, 6)):
        second.write(step, {}, {}, {}, "a", number)
    first.write(6, {}, {}, {}, "a", 1)
    parts = [".part_a_000002_00000006"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [*parts, "last", "step_00000006"]
