"""The checkpoints of a run on disk."""

import json
import logging
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from treadle.checkpoint import CheckpointStore, Policy
from treadle.checkpoint.format.tree import split
from treadle.errors import CheckpointError


def store_in(folder: Path, **policy: Any) -> CheckpointStore:
    return CheckpointStore(folder, Policy(**{"keep_last": None, **policy}))


def write(store: CheckpointStore, step: int, value: float = 0.0, **facts: Any) -> None:
    structure, tensors = split({"weights": torch.full((4,), value), "step": step})
    store.write(step, structure, tensors, facts, "attempt")


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_checkpoint_is_a_folder_of_tensors_json_and_a_manifest(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    write(store, 1200, 2.5, epoch=3)
    assert names(tmp_path) == {"step_00001200", "last"}
    assert names(store.path(1200)) == {"rank_0.safetensors", "rank_0.json", "manifest.json"}
    state = store.read(1200)
    assert (state["weights"].tolist(), state["step"]) == ([2.5] * 4, 1200)
    manifest = store.manifest(1200, verify=True)
    assert (manifest["step"], manifest["epoch"]) == (1200, 3)
    assert set(manifest["files"]) == {"rank_0.safetensors", "rank_0.json"}
    for name, entry in manifest["files"].items():
        assert entry["size"] == (store.path(1200) / name).stat().st_size
        assert len(entry["crc32"]) == 8


def test_steps_are_listed_in_order_and_other_things_are_passed_over(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    for step in (20, 3, 100):
        write(store, step)
    (tmp_path / "step_x").mkdir()
    (tmp_path / "notes").mkdir()
    assert store.steps() == [3, 20, 100]


def test_a_step_may_have_more_digits_than_its_name_has_room_for(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    write(store, 1_234_567_890)
    assert store.steps() == [1_234_567_890]
    assert store.pointer("last") == 1_234_567_890


def test_an_empty_folder_and_one_that_is_not_there_hold_nothing(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        store = store_in(folder)
        assert (store.steps(), store.newest_good(), store.pointer("last")) == ([], None, None)


def test_the_last_and_the_best_are_pointed_at(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    write(store, 1, best=True)
    write(store, 2, best=True)
    write(store, 3)
    assert (store.pointer("last"), store.pointer("best")) == (3, 2)
    assert (tmp_path / "best").read_text().strip() == "step_00000002"


@pytest.mark.parametrize("text", ["", "step_00000009", "nonsense", "../step_00000001"])
def test_a_pointer_that_names_no_checkpoint_points_nowhere(tmp_path: Path, text: str) -> None:
    store = store_in(tmp_path)
    write(store, 1)
    (tmp_path / "last").write_text(text)
    assert store.pointer("last") is None


def test_what_is_pointed_at_is_never_removed(tmp_path: Path) -> None:
    store = store_in(tmp_path, keep_last=1)
    for step in range(1, 6):
        write(store, step, best=step == 2)
    assert store.steps() == [2, 5]


def test_rotation_counts_what_an_earlier_process_wrote(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        write(store_in(tmp_path, keep_last=2), step)
    write(store_in(tmp_path, keep_last=2), 4)
    assert store_in(tmp_path).steps() == [3, 4]


def test_the_same_step_again_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    write(store, 5, 1.0)
    write(store, 5, 2.0)
    assert store.read(5)["weights"].tolist() == [2.0] * 4
    assert names(tmp_path) == {"step_00000005", "last"}


def test_while_a_step_is_written_again_the_pointers_name_something_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_in(tmp_path)
    write(store, 5, 1.0)
    seen: list[Any] = []
    replace = os.replace

    def watching(source: Any, target: Any) -> None:
        replace(source, target)
        fresh = store_in(tmp_path)
        seen.append((fresh.pointer("last"), fresh.newest_good()))

    monkeypatch.setattr(os, "replace", watching)
    write(store, 5, 2.0)
    assert set(seen) == {(5, 5)}


def test_later_checkpoints_are_discarded_and_the_pointers_follow(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    for step in (1, 2, 3, 4):
        write(store, step, best=step in (1, 3))
    store.discard_after(2)
    assert store.steps() == [1, 2]
    assert (store.pointer("last"), store.pointer("best")) == (2, 1)
    store.discard_after(0)
    assert names(tmp_path) == set()


def test_leftovers_of_a_process_that_was_killed_are_removed(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    write(store, 1)
    (tmp_path / ".part_other_00000002").mkdir()
    (tmp_path / ".part_other_00000002" / "rank_0.safetensors").touch()
    store.clear_leftovers()
    assert names(tmp_path) == {"step_00000001", "last"}


def test_a_pointer_that_a_kill_left_behind_is_mended(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    for step in (1, 2):
        write(store, step)
    (tmp_path / "last").write_text("step_00000001")
    store.clear_leftovers()
    assert store.pointer("last") == 2


def test_a_name_of_the_users_keeps_a_checkpoint(tmp_path: Path) -> None:
    store = store_in(tmp_path, keep_last=1)
    write(store, 1)
    store.point("release", 1)
    for step in (2, 3):
        write(store, step)
    assert store.steps() == [1, 3]
    assert store.pointer("release") == 1


# Damage ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rank_0.safetensors", "rank_0.json"])
@pytest.mark.parametrize(
    ("damage", "message"), [("cut", "bytes instead of"), ("flip", "its checksum differs"), ("gone", "is missing")]
)
def test_the_newest_whole_checkpoint_is_found_and_damage_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, damage: str, message: str
) -> None:
    store = store_in(tmp_path)
    for step in (1, 2):
        write(store, step)
    file = store.path(2) / name
    content = bytearray(file.read_bytes())
    if damage == "gone":
        file.unlink()
    else:
        content[-1] ^= 1
        file.write_bytes(content[:-1] if damage == "cut" else content)
    with caplog.at_level(logging.WARNING, logger="treadle"):
        assert store.newest_good() == 1
    assert f"{name}" in caplog.text
    assert message in caplog.text
    with pytest.raises(CheckpointError, match=message):
        store.manifest(2, verify=True)


def test_the_newest_before_a_step_is_found(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    for step in (1, 4, 7):
        write(store, step)
    assert [store.newest_good(before=step) for step in (1, 2, 4, 7, 9)] == [None, 1, 1, 4, 7]


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"format": 3}'])
def test_a_manifest_that_cannot_be_read_is_damage(tmp_path: Path, content: str) -> None:
    store = store_in(tmp_path)
    write(store, 1)
    (store.path(1) / "manifest.json").write_text(content)
    with pytest.raises(CheckpointError, match="manifest"):
        store.manifest(1)
    assert store.newest_good() is None


def test_a_format_of_another_version_is_named(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    write(store, 1)
    path = store.path(1) / "manifest.json"
    path.write_text(path.read_text().replace("treadle-checkpoint-1", "treadle-checkpoint-9"))
    with pytest.raises(CheckpointError):
        store.manifest(1)
    assert store.newest_good() is None


def test_a_checkpoint_that_is_not_there_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="step_00000003 cannot be read"):
        store_in(tmp_path).read(3)


def test_a_part_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_in(tmp_path)
    write(store, 1)
    before = names(tmp_path)

    def fail(*arguments: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("treadle.checkpoint.store.save_file", fail)
    with pytest.raises(CheckpointError) as caught:
        write(store, 2)
    assert str(caught.value).startswith(f"cannot write the checkpoint of step 2 into {tmp_path}: ")
    assert "No space left on device" in str(caught.value)
    assert names(tmp_path) == before


# Several ranks, by hand -----------------------------------------------------------------------------------


def test_the_first_rank_commits_when_all_parts_are_there(tmp_path: Path) -> None:
    stores = [CheckpointStore(tmp_path, Policy(), rank=rank, size=2) for rank in range(2)]

    def write_part(rank: int) -> None:
        structure, tensors = split({"rank": rank, "tensor": torch.tensor([rank])})
        stores[rank].write(7, structure, tensors, {}, "attempt")

    first = threading.Thread(target=write_part, args=(0,))
    first.start()
    assert stores[0].steps() == []
    write_part(1)
    first.join()
    assert stores[0].steps() == [7]
    assert [store.read(7)["rank"] for store in stores] == [0, 1]
    assert stores[1].read(7, rank=0)["tensor"].tolist() == [0]
    assert len(json.loads((stores[0].path(7) / "manifest.json").read_text())["files"]) == 4
    assert stores[0].newest_good() == 7


def test_a_checkpoint_without_the_part_of_a_rank_is_damaged(tmp_path: Path) -> None:
    test_the_first_rank_commits_when_all_parts_are_there(tmp_path)
    store = CheckpointStore(tmp_path, Policy(), rank=0, size=2)
    (store.path(7) / "rank_1.json").unlink()
    assert store.newest_good() is None
