"""What does not change is stored once a run: frozen weights, and whatever else stays as it is from save to save."""

import copy
import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.interrupting import CutAt, CutError, assert_same_bits, make_trainer, samples, updates_of
from tests.storages import KINDS, checkpoints_in
from treadle.checkpoint import CheckpointStore, Policy
from treadle.checkpoint.format.layouts import FolderLayout
from treadle.checkpoint.format.tree import split
from treadle.errors import CheckpointError

MIB = 1 << 20
KEEP_ALL = Policy(keep_last=None)


def store(folder: Path, policy: Policy = KEEP_ALL) -> CheckpointStore:
    return CheckpointStore(folder, policy)


def write(to: CheckpointStore, step: int, state: dict[str, Tensor], *frozen: str) -> None:
    structure, tensors = split(state)
    to.write(step, structure, tensors, {}, "attempt", step, frozen)


def sizes(to: CheckpointStore, step: int) -> list[int]:
    """The sizes of the files with tensors that only this checkpoint has."""
    files = sorted(to.path(step).glob("*.safetensors"))
    return [path.stat().st_size for path in files if path.stat().st_nlink == 1]


def on_disk(folder: Path) -> int:
    """The bytes of all files below a folder, each file counted once however many names it has."""
    return sum({path.stat().st_ino: path.stat().st_size for path in folder.rglob("*") if path.is_file()}.values())


def assert_reads(to: CheckpointStore, step: int, state: dict[str, Tensor]) -> None:
    to.manifest(step, verify=True)
    read = to.read(step)
    assert read.keys() == state.keys()
    for name, tensor in state.items():
        assert torch.equal(read[name], tensor), name


def state(number: float) -> dict[str, Tensor]:
    return {"still": torch.arange(MIB, dtype=torch.float32), "moving": torch.full((1000,), number)}


def test_what_nothing_trains_is_written_by_the_first_save_only(tmp_path: Path) -> None:
    to = store(tmp_path)
    for step in (1, 2, 3):
        write(to, step, state(step), "still")
    assert on_disk(tmp_path) < 4 * MIB + 3 * 10_000
    for step in (1, 2, 3):
        assert_reads(store(tmp_path), step, state(step))


def test_what_turns_out_not_to_change_is_shared_too(tmp_path: Path) -> None:
    to = store(tmp_path)
    for step in range(1, 8):
        write(to, step, state(step))
    # Seen twice, compared once, kept apart, and shared from then on.
    assert [sum(sizes(to, step)) > 4 * MIB for step in range(1, 8)] == [True, True, False, False, False, False, False]
    assert on_disk(tmp_path) < 3 * 4 * MIB + 7 * 10_000
    for step in range(1, 8):
        assert_reads(store(tmp_path), step, state(step))


def test_a_tensor_that_changes_in_one_place_that_no_sample_sees_is_written_again(tmp_path: Path) -> None:
    to, now = store(tmp_path), state(0.0)
    for step in range(1, 5):
        write(to, step, copy.deepcopy(now), "still")
    now["still"][4099] += 1
    write(to, 5, copy.deepcopy(now), "still")
    assert_reads(store(tmp_path), 4, state(0.0))
    assert_reads(store(tmp_path), 5, now)


@pytest.mark.parametrize("changed", [torch.zeros(MIB), torch.zeros(2, MIB // 2), torch.zeros(MIB, dtype=torch.int32)])
def test_another_shape_or_type_of_the_same_bytes_is_another_tensor(tmp_path: Path, changed: Tensor) -> None:
    to = store(tmp_path)
    for step in (1, 2):
        write(to, step, {"still": torch.zeros(MIB)}, "still")
    write(to, 3, {"still": changed}, "still")
    read = store(tmp_path).read(3)["still"]
    assert (read.shape, read.dtype) == (changed.shape, changed.dtype)


def test_a_part_that_begins_to_move_takes_only_itself_along(tmp_path: Path) -> None:
    to = store(tmp_path)
    still, other = torch.rand(MIB), torch.rand(MIB)
    for step in (1, 2):
        write(to, step, {"still": still, "other": other}, "still", "other")
    write(to, 3, {"still": still, "other": other + 1}, "still")
    write(to, 4, {"still": still, "other": other + 2}, "still")
    assert 4 * MIB < sum(sizes(to, 4)) < 5 * MIB
    assert_reads(store(tmp_path), 4, {"still": still, "other": other + 2})


def test_little_that_is_unchanged_is_written_again(tmp_path: Path) -> None:
    to = store(tmp_path)
    for step in (1, 2):
        write(to, step, {"still": torch.ones(1000)}, "still")
    assert sorted(path.name for path in to.path(2).iterdir()) == ["manifest.json", "rank_0.json", "rank_0.safetensors"]
    assert to.manifest(2)["format"] == "treadle-checkpoint-1"


def test_a_version_that_knows_no_shared_files_is_told_by_the_format(tmp_path: Path) -> None:
    to = store(tmp_path)
    write(to, 1, state(1), "still")
    assert to.manifest(1)["format"] == "treadle-checkpoint-2"


def test_retention_takes_nothing_that_another_checkpoint_needs(tmp_path: Path) -> None:
    to = store(tmp_path, Policy(keep_last=1))
    for step in (1, 2, 3):
        write(to, step, state(step), "still")
        assert to.steps() == [step]
        assert_reads(store(tmp_path), step, state(step))
    assert on_disk(tmp_path) < 4 * MIB + 10_000


def test_each_checkpoint_can_be_taken_away_alone(tmp_path: Path) -> None:
    to = store(tmp_path / "run")
    for step in (1, 2):
        write(to, step, state(step), "still")
    shutil.copytree(to.path(2), tmp_path / "other" / to.path(2).name)
    shutil.rmtree(tmp_path / "run")
    assert_reads(store(tmp_path / "other"), 2, state(2))


def test_where_files_cannot_have_two_names_they_are_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any) -> None:
        raise OSError("this disk has no hard links")

    monkeypatch.setattr(os, "link", refuse)
    to = store(tmp_path)
    for step in (1, 2):
        write(to, step, state(step), "still")
        assert_reads(store(tmp_path), step, state(step))
    assert sum(sizes(to, 2)) > 4 * MIB


def test_a_file_that_was_left_half_written_is_not_shared(tmp_path: Path) -> None:
    to = store(tmp_path)
    write(to, 1, state(1), "still")
    shared = next(path for path in to.path(1).glob("rank_0.*.safetensors"))
    part = tmp_path / ".part_attempt_000009_00000009"
    part.mkdir()
    (part / shared.name).write_bytes(shared.read_bytes()[:1000])
    shutil.rmtree(to.path(1))
    write(to, 2, state(2), "still")
    assert_reads(store(tmp_path), 2, state(2))


@pytest.mark.parametrize("how", ["cut", "flipped", "missing"])
def test_damage_of_a_shared_file_is_found_in_every_checkpoint_that_has_it(tmp_path: Path, how: str) -> None:
    to = store(tmp_path)
    for step in (1, 2):
        write(to, step, state(step), "still")
    path = next(to.path(2).glob("rank_0.*.safetensors"))
    if how == "missing":
        path.unlink()
    else:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= how == "flipped"
        path.write_bytes(content[: None if how == "flipped" else -1])
    words = {"cut": "bytes instead of", "flipped": "checksum differs", "missing": "is missing"}[how]
    with pytest.raises(CheckpointError, match=f"{path.name}.*{words}"):
        store(tmp_path).manifest(2, verify=True)
    assert store(tmp_path).newest_good() == (1 if how == "missing" else None)


def test_a_header_that_names_other_files_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    to = store(tmp_path)
    write(to, 1, state(1), "still")
    save_file({}, to.path(1) / "rank_0.safetensors", metadata={"shared": '["../../secret.safetensors"]'})
    with pytest.raises(CheckpointError, match=r"its header names .*secret"):
        store(tmp_path).read(1)


# In a bucket, where a file cannot lie in two folders --------------------------------------------------------------


BUCKETS = [kind for kind in KINDS if kind != "folder"]


def in_bucket(kind: str, folder: Path, **policy: Any) -> CheckpointStore:
    return CheckpointStore(checkpoints_in(kind, folder), Policy(**{"keep_last": None, **policy}))


def shared_in(to: CheckpointStore) -> list[str]:
    return sorted(to.storage.files("shared"))


@pytest.mark.parametrize("kind", BUCKETS)
def test_a_bucket_holds_what_is_unchanged_once(kind: str, tmp_path: Path) -> None:
    to = in_bucket(kind, tmp_path)
    for step in (1, 2, 3):
        write(to, step, state(step), "still")
    assert len(shared_in(to)) == 1
    assert sum(to.storage.files().values()) < 4 * MIB + 3 * 10_000
    for step in (1, 2, 3):
        assert_reads(in_bucket(kind, tmp_path), step, state(step))


@pytest.mark.parametrize("kind", BUCKETS)
def test_a_bucket_loses_a_shared_file_with_the_last_checkpoint_that_names_it(kind: str, tmp_path: Path) -> None:
    to, changed = in_bucket(kind, tmp_path, keep_last=1), {**state(3), "still": torch.zeros(MIB)}
    for step in (1, 2):
        write(to, step, state(step), "still")
    first = shared_in(to)
    for step in (3, 4, 5):
        write(to, step, changed, "still")
        assert_reads(in_bucket(kind, tmp_path), step, changed)
    assert len(first) == len(shared_in(to)) == 1
    assert shared_in(to) != first


@pytest.mark.parametrize("kind", BUCKETS)
def test_what_a_killed_save_left_in_a_bucket_goes_at_the_next_start(kind: str, tmp_path: Path) -> None:
    to = in_bucket(kind, tmp_path)
    write(to, 1, state(1), "still")
    kept = shared_in(to)
    to.storage.write("shared/rank_0.0123456789abcdef.safetensors", b"left by a save that was killed")
    to.clear_leftovers()
    assert shared_in(to) == kept


def test_a_run_that_was_copied_from_a_bucket_is_read_in_its_folder(tmp_path: Path) -> None:
    to = in_bucket("file", tmp_path / "bucket")
    for step in (1, 2):
        write(to, step, state(step), "still")
    shutil.copytree(tmp_path / "bucket" / "kept" / "checkpoints", tmp_path / "copy")
    copied = store(tmp_path / "copy")
    assert_reads(copied, 2, state(2))
    next((tmp_path / "copy" / "shared").iterdir()).unlink()
    with pytest.raises(CheckpointError, match="is missing"):
        copied.manifest(2, verify=True)


# Through the trainer --------------------------------------------------------------------------------------------


class Adapted(nn.Module):
    """A large layer that stays as it is, and a small one beside it that is trained."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.base, self.adapter = nn.Linear(2, 400_000), nn.Linear(2, 1)
        self.base.requires_grad_(False)

    def forward(self, inputs: Tensor) -> Any:
        return self.adapter(inputs) + self.base(inputs).mean(1, keepdim=True)


def trained_only(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam([one for one in parameters if one.requires_grad], lr=0.05)


make = partial(make_trainer, build=Adapted, optimizer=trained_only, checkpoints=KEEP_ALL)


def train(trainer: Any) -> Any:
    trainer.train(samples(), num_epochs=4, per_device_batch_size=8, save_every=2, resume="auto")
    return trainer


def test_a_resumed_run_goes_on_sharing_what_the_killed_one_wrote(tmp_path: Path) -> None:
    whole = train(make(tmp_path / "whole"))
    with pytest.raises(CutError):
        train(make(tmp_path / "cut", CutAt(6)))
    resumed = train(make(tmp_path / "cut"))
    assert updates_of(resumed) == (4, 8)
    assert_same_bits(whole.model.state_dict(), resumed.model.state_dict())
    frozen = sum(one.nbytes for one in whole.model.base.parameters())
    for folder in ("whole", "cut"):
        assert frozen < on_disk(tmp_path / folder / "checkpoints") < frozen + 6 * 30_000
    checkpoints = CheckpointStore(tmp_path / "cut" / "checkpoints", KEEP_ALL)
    assert checkpoints.steps() == [2, 4, 6, 8, 10, 12]
    for step in checkpoints.steps():
        checkpoints.manifest(step, verify=True)
        assert torch.equal(checkpoints.read_weights(step)["base.weight"], whole.model.base.weight)


def test_layers_that_are_unfrozen_on_the_way_are_saved_as_they_are_then(tmp_path: Path) -> None:
    from treadle import TrainerCallback

    class Unfreeze(TrainerCallback):
        def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
            if trainer.progress.step == 6:
                with torch.no_grad():
                    trainer.model.base.weight[123_456] += 1.0

    trained = train(make(tmp_path, Unfreeze()))
    checkpoints = CheckpointStore(tmp_path / "checkpoints", KEEP_ALL)
    before, after = (checkpoints.read_weights(step)["base.weight"] for step in (4, 12))
    assert torch.equal(after, trained.model.base.weight)
    assert (before != after).sum() == 2


def test_a_layout_that_cannot_share_says_so(tmp_path: Path) -> None:
    to = store(tmp_path)
    assert isinstance(to._layout, FolderLayout)
    assert not to._layout.share("rank_0.0123456789abcdef.safetensors", 10, tmp_path)
