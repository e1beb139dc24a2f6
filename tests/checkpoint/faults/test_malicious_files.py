"""A pickle that would run code is never unpickled, whatever name it has and however well it is declared."""

import json
import pickle
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.checkpoint.faults.damaged_runs import checkpoint, train, wide_trainer
from tests.interrupting import assert_same_run, updates_of
from treadle.errors import CheckpointError, TreadleError


class Malicious:
    """Creates a file when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return Path.touch, (self.target,)


def plain_pickle(target: Path) -> bytes:
    return pickle.dumps(Malicious(target))


def old_pickle(target: Path) -> bytes:
    return pickle.dumps(Malicious(target), protocol=0)


def torch_file(target: Path) -> bytes:
    path = target.with_name("made_by_torch")
    torch.save({"model_state_dict": Malicious(target)}, path)
    return path.read_bytes()


def zip_file(target: Path) -> bytes:
    path = target.with_name("made_by_zip")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", plain_pickle(target))
    return path.read_bytes()


BOMBS = pytest.mark.parametrize("bomb", [plain_pickle, old_pickle, torch_file, zip_file])
Bomb = Callable[[Path], bytes]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """What the payload would create."""
    return tmp_path / "owned"


def declare(folder: Path, name: str) -> None:
    """Make the manifest of a checkpoint say that the file is as it should be."""
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["crc32"]
    content = (folder / name).read_bytes()
    manifest["files"][name] = {"size": len(content), "crc32": f"{zlib.crc32(content):08x}"}
    seal = zlib.crc32(json.dumps(manifest, sort_keys=True).encode())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "crc32": f"{seal:08x}"}))


def test_the_payload_works(target: Path) -> None:
    pickle.loads(plain_pickle(target))  # noqa: S301 - that is the point
    assert target.exists()


@BOMBS
@pytest.mark.parametrize("name", ["rank_0.safetensors", "rank_0.json", "manifest.json"])
def test_in_a_checkpoint_it_is_damage(run: Path, target: Path, name: str, bomb: Bomb) -> None:
    (checkpoint(run, 9) / name).write_bytes(bomb(target))
    resumed = train(run)
    assert updates_of(resumed) == (6, 3)
    assert_same_run(resumed, train(None))
    assert not target.exists()


@BOMBS
@pytest.mark.parametrize("name", ["rank_0.safetensors", "rank_0.json"])
def test_in_a_checkpoint_that_vouches_for_it_it_is_refused(run: Path, target: Path, name: str, bomb: Bomb) -> None:
    (checkpoint(run, 9) / name).write_bytes(bomb(target))
    declare(checkpoint(run, 9), name)
    with pytest.raises(CheckpointError, match="step_00000009 cannot be read"):
        train(run)
    assert not target.exists()


@BOMBS
@pytest.mark.parametrize(
    "name",
    [
        "metrics.jsonl",
        "config.yaml",
        "manifest.json",
        "log.txt",
        "checkpoints/last",
        "checkpoints/best",
        "checkpoints/step_00000009/rank_0.pkl",
        "checkpoints/step_00000009/rank_0.done",
        "checkpoints/step_00000009/optimizer.pt",
        "checkpoints/step_00000012/rank_0.safetensors",
        "model.pt",
    ],
)
def test_anywhere_else_in_the_folder_of_a_run_it_is_not_even_read(
    run: Path, target: Path, name: str, bomb: Bomb
) -> None:
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).write_bytes(bomb(target))
    with suppress(TreadleError):
        train(run)
    assert not target.exists()


@BOMBS
@pytest.mark.parametrize("name", ["best_model.pt", "saved.pth", "model.safetensors", "state"])
def test_as_a_file_of_weights_it_is_refused(target: Path, tmp_path: Path, name: str, bomb: Bomb) -> None:
    (tmp_path / name).write_bytes(bomb(target))
    with pytest.raises(CheckpointError, match=name):
        wide_trainer(None).load_checkpoint(tmp_path / name)
    assert not target.exists()


@BOMBS
def test_as_a_training_state_it_is_refused(target: Path, tmp_path: Path, bomb: Bomb) -> None:
    (tmp_path / "state.safetensors").write_bytes(bomb(target))
    with pytest.raises(CheckpointError, match=r"state\.safetensors"):
        wide_trainer(None).load_training_state(tmp_path)
    assert not target.exists()
