"""Every storage does what `Storage` says, and the checkpoints in it are what they are on a disk."""

import json
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.sqlite_storage import SqliteStorage
from treadle.checkpoint import CheckpointStore, FsspecStorage, LocalStorage, Policy, Storage
from treadle.checkpoint.format.tree import split
from treadle.errors import CheckpointError, ConfigError, MissingDependencyError, StorageError
from treadle.files import atomic_io as durable
from treadle.files.storage import Within
from treadle.runs.mirror import open_storage

fsspec = pytest.importorskip("fsspec")

PLACES = ["disk", "file", "memory", "sqlite", "within"]


@pytest.fixture(params=PLACES)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    """A storage of each kind, empty."""
    made: dict[str, Callable[[], Storage]] = {
        "disk": lambda: LocalStorage(tmp_path / "kept"),
        "file": lambda: FsspecStorage(f"file://{tmp_path}/kept"),
        "memory": lambda: FsspecStorage(f"memory://{tmp_path.name}/kept"),
        "sqlite": lambda: SqliteStorage(tmp_path / "kept.sqlite"),
        "within": lambda: Within(FsspecStorage(f"memory://{tmp_path.name}"), "kept"),
    }
    yield made[request.param]()
    fsspec.filesystem("memory").store.clear()


def test_what_was_written_is_read_and_listed_with_its_size(storage: Storage) -> None:
    assert storage.files() == {}
    storage.write("a", b"1")
    storage.write("folder/b", b"22")
    storage.write("folder/deep/c", b"")
    storage.write("folder 2/d", b"4444")
    storage.write("a", b"333")
    assert storage.files() == {"a": 3, "folder/b": 2, "folder/deep/c": 0, "folder 2/d": 4}
    assert storage.files("folder") == {"folder/b": 2, "folder/deep/c": 0}
    assert storage.files("folder/deep") == {"folder/deep/c": 0}
    assert storage.read("a") == b"333"
    assert storage.address("a").endswith("kept/a") or "sqlite" in storage.url


def test_what_is_not_there_is_no_error_of_the_storage(storage: Storage, tmp_path: Path) -> None:
    storage.write("a/b", b"1")
    for name in ("b", "a", "a/c"):
        with pytest.raises(OSError) as caught:
            storage.read(name)
        assert isinstance(caught.value, (FileNotFoundError, IsADirectoryError))
    with pytest.raises(FileNotFoundError):
        storage.download("b", tmp_path / "copy")
    storage.remove("b")
    assert storage.files("b") == {}


def test_what_is_removed_is_gone_with_all_below_it_and_nothing_else(storage: Storage) -> None:
    for name in ("a/b", "a/c/d", "ab", "e"):
        storage.write(name, b"1")
    storage.remove("a")
    assert list(storage.files()) == ["ab", "e"]
    storage.remove("e")
    assert list(storage.files()) == ["ab"]


def test_a_file_is_created_once(storage: Storage) -> None:
    assert storage.create("lock", b"first")
    assert not storage.create("lock", b"second")
    assert storage.read("lock") == b"first"
    storage.remove("lock")
    assert storage.create("lock", b"third")


def test_files_of_this_machine_are_copied_both_ways(storage: Storage, tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(bytes(range(256)) * 1000)
    storage.upload("folder/one", tmp_path / "one")
    storage.download("folder/one", tmp_path / "two")
    assert (tmp_path / "two").read_bytes() == (tmp_path / "one").read_bytes()


# Checkpoints ----------------------------------------------------------------------------------------------


def write(storage: Storage, step: int, value: float = 0.0, *, attempt: str = "attempt", **policy: Any) -> None:
    structure, tensors = split({"step": step, "weights": torch.full((4,), value)})
    CheckpointStore(storage, Policy(**policy)).write(step, structure, tensors, {"best": step == 1}, attempt)


def test_checkpoints_are_kept_pointed_at_and_read(storage: Storage) -> None:
    for step in (1, 2, 3, 4):
        write(storage, step, float(step), keep_last=2)
    store = CheckpointStore(storage, Policy())
    assert store.steps() == [1, 3, 4]
    assert (store.pointer("last"), store.pointer("best"), store.pointers()) == (4, 1, ["best", "last"])
    assert store.newest_good() == 4
    assert store.newest_good(before=4) == 3
    assert store.read(4)["weights"].tolist() == [4.0] * 4
    assert store.manifest(4, verify=True)["step"] == 4
    store.point("release", 3)
    assert store.pointer("release") == 3
    assert (store.has(3), store.has(2)) == (True, False)


def test_the_same_step_again_takes_the_place_of_the_old_one_and_leaves_nothing_of_it(storage: Storage) -> None:
    write(storage, 5, 1.0, attempt="one")
    count = len(storage.files())
    write(storage, 5, 2.0, attempt="two")
    assert CheckpointStore(storage, Policy()).read(5)["weights"].tolist() == [2.0] * 4
    assert len(storage.files()) == count


def test_later_checkpoints_are_discarded(storage: Storage) -> None:
    for step in (1, 2, 3):
        write(storage, step)
    store = CheckpointStore(storage, Policy())
    store.discard_after(1)
    assert (store.steps(), store.pointer("last")) == ([1], 1)
    assert {name.partition("/")[0] for name in storage.files()} == {"step_00000001", "last", "best"}


@pytest.mark.parametrize("damaged", ["safetensors", "json", "manifest"])
@pytest.mark.parametrize("how", ["cut", "flip", "gone"])
def test_a_damaged_checkpoint_is_passed_over_and_set_aside(
    storage: Storage, damaged: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    for step in (1, 2):
        write(storage, step)
    ending = {"safetensors": "rank_0.safetensors", "json": "rank_0.json", "manifest": "manifest.json"}[damaged]
    (name,) = (name for name in storage.files("step_00000002") if name.endswith(ending))
    content = bytearray(storage.read(name))
    content[-3 if damaged == "manifest" else -1] ^= 1
    if how == "gone":
        storage.remove(name)
    else:
        storage.write(name, bytes(content[:-1] if how == "cut" else content))
    left = storage.files("step_00000002")
    store = CheckpointStore(storage, Policy())
    is_there = 2 in store.steps()
    # Without a manifest there is nothing but on a disk, where the name of the folder says that it was whole.
    assert is_there or (damaged == "manifest" and how == "gone" and not isinstance(storage, LocalStorage))
    with caplog.at_level(logging.WARNING, logger="treadle"):
        assert store.newest_good() == 1
    assert ("skipping a damaged checkpoint" in caplog.text) is is_there
    store.discard_after(1)
    store.clear_leftovers()
    assert (store.steps(), store.pointer("last")) == ([1], 1)
    if is_there:
        assert "the damaged checkpoint of step 2 is kept as " in caplog.text
        kept = [file for file in storage.files() if "step_00000002" in file]
        assert len(kept) == len(left)
        write(storage, 2, 7.0, attempt="again")
        assert store.read(2)["weights"].tolist() == [7.0] * 4
        store.clear_leftovers()
        assert set(kept) <= set(storage.files())


def test_leftovers_of_a_process_that_was_killed_are_removed(tmp_path: Path) -> None:
    storage = FsspecStorage(f"file://{tmp_path}/kept")
    write(storage, 1)
    whole = storage.files()
    storage.write("step_00000002/killed_000001/rank_0.json", b"{}")
    storage.write("step_00000001/killed_000002/rank_1.done", b"{}")
    (tmp_path / "kept" / ".part").mkdir(exist_ok=True)
    (tmp_path / "kept" / ".part" / "123").touch()
    store = CheckpointStore(storage, Policy())
    assert (store.steps(), store.newest_good()) == ([1], 1)
    store.clear_leftovers()
    assert storage.files() == whole
    assert not (tmp_path / "kept" / ".part").exists()


def test_a_room_outside_of_its_checkpoint_is_refused(tmp_path: Path) -> None:
    from treadle.checkpoint.format.manifest import sealed

    storage = FsspecStorage(f"file://{tmp_path}/kept")
    write(storage, 1)
    said = {"step": 1, "ranks": 1, "files": {}, "folder": "../../elsewhere"}
    storage.write("step_00000001/manifest.json", sealed(said).encode())
    for place in (storage, tmp_path / "kept"):
        with pytest.raises(CheckpointError, match=r"no run wrote: folder is '../../elsewhere'; restore it"):
            CheckpointStore(place, Policy()).read(1)


def test_a_checkpoint_that_was_copied_from_a_bucket_to_a_folder_is_read_there(tmp_path: Path) -> None:
    write(FsspecStorage(f"file://{tmp_path}/kept"), 3, 3.0)
    store = CheckpointStore(tmp_path / "kept", Policy())
    assert store.newest_good() == 3
    assert store.read(3)["weights"].tolist() == [3.0] * 4


def test_two_ranks_write_into_a_storage(storage: Storage) -> None:
    import threading

    stores = [CheckpointStore(storage, Policy(), rank=rank, size=2) for rank in range(2)]

    def write_part(rank: int) -> None:
        structure, tensors = split({"rank": rank, "tensor": torch.tensor([rank])})
        stores[rank].write(7, structure, tensors, {}, "attempt")

    first = threading.Thread(target=write_part, args=(0,))
    first.start()
    write_part(1)
    first.join()
    assert stores[0].steps() == [7]
    assert [store.read(7)["rank"] for store in stores] == [0, 1]
    assert not [name for name in storage.files() if name.endswith((".done", ".failed"))]


def test_a_rank_may_be_a_save_of_the_same_step_ahead(storage: Storage) -> None:
    stores = [CheckpointStore(storage, Policy(), rank=rank, size=2) for rank in range(2)]

    def write_part(rank: int, number: int) -> None:
        structure, tensors = split({"number": number, "tensor": torch.tensor([rank])})
        stores[rank].write(7, structure, tensors, {}, "attempt", number)

    write_part(1, 1)
    write_part(1, 2)
    write_part(0, 1)
    # The second save finds the part that was there before the first one was complete.
    stores[0].abandon(0.0)
    write_part(0, 2)
    assert [store.read(7)["number"] for store in stores] == [2, 2]
    leftover = [name for name in storage.files() if "_000001" in name or name.endswith((".done", ".failed"))]
    assert leftover == []


def test_a_rank_that_could_not_write_is_not_waited_for(storage: Storage) -> None:
    stores = [CheckpointStore(storage, Policy(), rank=rank, size=2) for rank in range(2)]
    stores[1].pass_over(7, "attempt", 0)
    structure, tensors = split({"tensor": torch.zeros(1)})
    with pytest.raises(CheckpointError, match="rank 1 could not write its part"):
        stores[0].write(7, structure, tensors, {}, "attempt")
    assert (stores[0].steps(), [name for name in storage.files() if "rank_0" in name]) == ([], [])


# Errors ---------------------------------------------------------------------------------------------------


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], FsspecStorage]:
    """A storage whose file system fails in one of its methods, the first so many times."""
    monkeypatch.setattr(durable, "PAUSES", (0.0, 0.0))

    def made(method: str, times: int) -> FsspecStorage:
        storage = FsspecStorage("memory://broken")
        original, left = getattr(storage._fs, method), [times]

        def fail(*args: Any, **kwargs: Any) -> Any:
            if left[0]:
                left[0] -= 1
                raise RuntimeError("the endpoint https://user:secret@host does not answer")
            return original(*args, **kwargs)

        monkeypatch.setattr(storage._fs, method, fail)
        return storage

    return made


@pytest.mark.parametrize(
    ("method", "verb", "act"),
    [
        ("cat_file", "read", lambda storage: storage.read("a")),
        ("pipe_file", "written", lambda storage: storage.write("a", b"2")),
        ("find", "listed", lambda storage: storage.files()),
        ("rm", "removed", lambda storage: storage.remove("a")),
    ],
)
def test_what_fails_for_a_moment_is_tried_again_and_what_fails_for_long_is_told(
    broken: Callable[[str, int], FsspecStorage], method: str, verb: str, act: Callable[[Storage], Any]
) -> None:
    FsspecStorage("memory://broken").write("a", b"1")
    act(broken(method, 2))
    FsspecStorage("memory://broken").write("a", b"1")
    with pytest.raises(StorageError) as caught:
        act(broken(method, 99))
    said = str(caught.value)
    assert said.startswith("memory://broken/")
    assert f"cannot be {verb} now: RuntimeError: the endpoint https://user:***@host does not answer" in said
    assert "start again when the place can be reached" in said


def test_a_checkpoint_that_cannot_be_read_now_is_not_taken_for_a_damaged_one(
    broken: Callable[[str, int], FsspecStorage],
) -> None:
    write(FsspecStorage("memory://broken"), 1)
    with pytest.raises(StorageError):
        CheckpointStore(broken("cat_file", 99), Policy()).newest_good()


def test_a_missing_package_says_which_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(MissingDependencyError, match=r"s3://bucket/run cannot be opened.*pip install 'treadle\[s3\]'"):
        FsspecStorage("s3://bucket/run")
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(MissingDependencyError, match=r"needs fsspec; pip install 'treadle\[remote\]'"):
        FsspecStorage("memory://bucket/run")


def test_a_url_that_nothing_knows_is_refused_and_its_password_is_not_shown() -> None:
    with pytest.raises(ConfigError, match=r"nowhere://user:\*\*\*@host/run cannot be opened \(ValueError"):
        FsspecStorage("nowhere://user:secret@host/run")


def test_a_url_that_was_made_a_path_is_refused() -> None:
    with pytest.raises(ConfigError, match="is a URL that was made a Path, which loses a slash of it; give it as a str"):
        open_storage(Path("s3://bucket/run"))


def test_what_is_no_storage_is_refused() -> None:
    with pytest.raises(ConfigError, match="run_dir=3 is no place for a run: give a path, a URL such as"):
        open_storage(3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"an object of a subclass of treadle\.checkpoint\.Storage"):
        open_storage(SqliteStorage)  # type: ignore[arg-type]


def test_checkpoints_in_a_bucket_have_no_folder() -> None:
    store = CheckpointStore(FsspecStorage("memory://bucket/run"), Policy())
    with pytest.raises(ConfigError, match="are in no folder of this machine; copy the run: treadle fetch URL FOLDER"):
        store.path(3)
    assert store.address(3) == "memory://bucket/run/step_00000003"
    assert json.dumps(str(store)) == '"memory://bucket/run"'
