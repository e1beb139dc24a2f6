"""A checkpoint that cannot be read at present is not taken for a damaged one, and nothing is removed for it."""

import errno
import logging
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint.faults.damaged_runs import checkpoint, store_of, train
from tests.interrupting import CutAt, CutError, assert_same_run, contents, updates_of
from treadle.checkpoint import CheckpointStore, Policy
from treadle.checkpoint.format.tree import split
from treadle.errors import CheckpointError, StorageError
from treadle.files import atomic_io as durable
from treadle.runs.folder import RunFolder

PASSING = [errno.EMFILE, errno.EIO, errno.ESTALE]


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable, "PAUSES", (0.0, 0.0))


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let the next `times` attempts to open what matches a pattern fail; all of them if `times` is None."""
    opened, listed = Path.open, os.scandir

    def refuse(pattern: str, error: int, times: int | None = None) -> None:
        left = [10**9 if times is None else times]

        def guard(path: Any) -> None:
            if left[0] and not isinstance(path, int) and Path(path).match(pattern):
                left[0] -= 1
                raise OSError(error, os.strerror(error), str(path))

        def guarded(path: Path, *args: Any, **kwargs: Any) -> Any:
            guard(path)
            return opened(path, *args, **kwargs)

        def guarded_scan(path: Any = ".") -> Any:
            guard(path)
            return listed(path)

        monkeypatch.setattr(Path, "open", guarded)
        monkeypatch.setattr(os, "scandir", guarded_scan)

    return refuse


@pytest.mark.parametrize("name", ["manifest.json", "rank_0.json", "rank_0.safetensors"])
@pytest.mark.parametrize("error", PASSING)
def test_a_file_that_cannot_be_read_for_a_moment_is_read_again(
    run: Path, refuse: Callable[..., None], error: int, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    refuse(f"step_00000009/{name}", error, times=2)
    with caplog.at_level(logging.WARNING):
        assert store_of(run).newest_good() == 9
    assert caplog.text == ""


@pytest.mark.parametrize("name", ["manifest.json", "rank_0.json", "rank_0.safetensors"])
@pytest.mark.parametrize("error", [errno.EIO, errno.EACCES])
def test_a_file_that_cannot_be_read_stops_the_run_and_costs_nothing(
    run: Path, refuse: Callable[..., None], error: int, name: str
) -> None:
    before = contents(run / "checkpoints")
    refuse(f"step_00000009/{name}", error)
    with pytest.raises(StorageError) as caught:
        train(run)
    assert str(caught.value).startswith(f"{checkpoint(run, 9) / name} cannot be read now: [Errno {error}]")
    assert "it may be whole, so nothing was removed: start again when it can be, or move the folder" in str(
        caught.value
    )
    refuse("nothing", 0)
    assert contents(run / "checkpoints") == before
    resumed = train(run)
    assert resumed.progress.step == 9
    assert "resuming from step 9" in (run / "log.txt").read_text()
    assert updates_of(resumed) == (9, 0)
    assert_same_run(resumed, train(None))


@contextmanager
def no_more_files() -> Iterator[None]:
    """Let the system itself refuse to open anything."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_run_that_has_too_many_open_files_keeps_its_newest_checkpoint(run: Path) -> None:
    before = contents(run / "checkpoints")
    with no_more_files(), pytest.raises(StorageError, match="Too many open files"):
        store_of(run).newest_good()
    assert contents(run / "checkpoints") == before
    assert store_of(run).newest_good() == 9


def test_a_folder_of_checkpoints_that_cannot_be_listed_is_not_an_empty_one(
    run: Path, refuse: Callable[..., None]
) -> None:
    before = contents(run)
    refuse("checkpoints", errno.EACCES)
    with pytest.raises(StorageError, match=r"checkpoints cannot be read now: \[Errno 13\]"):
        train(run)
    refuse("nothing", 0)
    assert contents(run) == before


@pytest.mark.parametrize("damage", ["flip", "gone"])
def test_a_damaged_checkpoint_is_set_aside_and_can_be_brought_back(
    run: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = checkpoint(run, 9) / "rank_0.safetensors"
    whole = file.read_bytes()
    if damage == "flip":
        file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    else:
        file.unlink()
    with caplog.at_level(logging.WARNING), pytest.raises(CutError):
        train(run, CutAt(7))
    aside = run / "checkpoints" / "damaged_step_00000009"
    assert f"the damaged checkpoint of step 9 is kept as {aside}; remove it when you like" in caplog.text
    assert store_of(run).steps() == [3, 6]
    assert store_of(run).pointer("last") == 6
    (aside / "rank_0.safetensors").write_bytes(whole)
    shutil.move(aside, checkpoint(run, 9))
    assert store_of(run).newest_good() == 9


def test_checkpoints_of_one_step_that_were_damaged_twice_are_both_kept(run: Path) -> None:
    for _ in range(2):
        (checkpoint(run, 9) / "rank_0.json").unlink()
        train(run)
    names = {path.name for path in (run / "checkpoints").iterdir() if path.is_dir()}
    kept = {"damaged_step_00000009", "damaged_step_00000009_2"}
    assert names == {"step_00000003", "step_00000006", "step_00000009", *kept}


def write(store: CheckpointStore, step: int, **facts: Any) -> None:
    structure, tensors = split({"step": step})
    store.write(step, structure, tensors, facts, "attempt")


def test_nothing_is_removed_while_it_is_not_known_what_is_pointed_at(
    tmp_path: Path, refuse: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    store = CheckpointStore(tmp_path, Policy(keep_last=1))
    write(store, 1, best=True)
    write(store, 2)
    refuse("best", errno.EIO)
    with caplog.at_level(logging.WARNING):
        write(store, 3)
    assert "no old checkpoint is removed this time: " in caplog.text
    assert store.steps() == [1, 2, 3]
    with pytest.raises(StorageError, match="best cannot be read now"):
        store.clear_leftovers()
    refuse("nothing", 0)
    write(store, 4)
    assert (store.steps(), store.pointer("best")) == ([1, 4], 1)


def test_the_best_checkpoint_stays_the_best_where_its_manifest_cannot_be_read(
    tmp_path: Path, refuse: Callable[..., None]
) -> None:
    store = CheckpointStore(tmp_path, Policy())
    write(store, 1, best=True)
    write(store, 2, best=True)
    (tmp_path / "best").write_text("step_00000001")
    refuse("step_00000002/manifest.json", errno.EIO)
    with pytest.raises(CheckpointError, match=r"step_00000002/manifest\.json cannot be read now"):
        store.clear_leftovers()
    refuse("nothing", 0)
    store.clear_leftovers()
    assert store.pointer("best") == 2


def test_the_starts_of_a_run_are_not_forgotten_where_they_cannot_be_read(
    tmp_path: Path, refuse: Callable[..., None]
) -> None:
    folder = RunFolder(tmp_path)
    folder.write_manifest({"step": 0})
    before = (tmp_path / "manifest.json").read_text()
    refuse("manifest.json", errno.EMFILE)
    with pytest.raises(StorageError, match=r"manifest\.json cannot be read now"):
        folder.write_manifest({"step": 3})
    refuse("nothing", 0)
    assert (tmp_path / "manifest.json").read_text() == before
