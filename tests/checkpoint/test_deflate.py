"""Long text of a checkpoint is deflated, and read again whatever the store is."""

import json
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch

from treadle.checkpoint import CheckpointStore, Policy
from treadle.checkpoint.format import deflate
from treadle.checkpoint.format.deflate import deflated, deflated_text, inflated, inflated_text
from treadle.checkpoint.format.tree import split
from treadle.errors import CheckpointError
from treadle.files.storage import LocalStorage, Within

STATE = {"weights": torch.arange(4.0), "names": [f"layers.{number}.weight" for number in range(2000)]}
LISTING = {f"layers.{number}": {"class": "Linear", "in_features": 8} for number in range(500)}


def write(store: CheckpointStore, state: Any = STATE) -> None:
    structure, tensors = split(state)
    store.write(1, structure, tensors, {"identity": {"model": LISTING}, "made of": LISTING, "epoch": 3}, "attempt")


def seal(folder: Path, manifest: dict[str, Any]) -> None:
    """Write a manifest that vouches for itself and for the files as they are."""
    for name in manifest["files"]:
        content = (folder / name).read_bytes()
        manifest["files"][name] = {"size": len(content), "crc32": f"{zlib.crc32(content):08x}"}
    crc32 = zlib.crc32(json.dumps(manifest, sort_keys=True).encode())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "crc32": f"{crc32:08x}"}))


@pytest.mark.parametrize("kind", ["folder", "objects"])
def test_long_text_is_stored_deflated_and_read_as_it_was(tmp_path: Path, kind: str) -> None:
    store = CheckpointStore(tmp_path if kind == "folder" else Within(LocalStorage(tmp_path), "run"), Policy())
    write(store)
    sizes = {path.name: path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()}
    assert "rank_0.json" not in sizes
    assert sizes["rank_0.json.gz"] < len(json.dumps(STATE["names"])) / 4
    assert sizes["manifest.json"] < len(json.dumps(LISTING)) / 4
    state, manifest = store.read(1), store.manifest(1, verify=True)
    assert state["names"] == STATE["names"]
    assert (manifest["identity"], manifest["made of"], manifest["epoch"]) == ({"model": LISTING}, LISTING, 3)
    # A version that cannot read it must know that it cannot.
    assert manifest["format"] == "treadle-checkpoint-3"


def test_a_deflated_file_that_is_missing_or_changed_is_damage(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, Policy())
    write(store)
    path = store.path(1) / "rank_0.json.gz"
    content = path.read_bytes()
    path.write_bytes(content[::-1])
    with pytest.raises(CheckpointError, match=r"rank_0.json.gz is damaged: its checksum differs"):
        store.manifest(1, verify=True)
    path.unlink()
    with pytest.raises(CheckpointError, match=r"rank_0.json.gz is missing"):
        store.manifest(1, verify=True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no gzip file", "cannot be inflated: .*incorrect header check"),
        (deflated("text")[:-9], "it ends too early"),  # type: ignore[index]
    ],
)
def test_a_file_that_is_vouched_for_and_cannot_be_inflated_is_named(
    tmp_path: Path, content: bytes, message: str
) -> None:
    store = CheckpointStore(tmp_path, Policy())
    write(store)
    folder = store.path(1)
    (folder / "rank_0.json.gz").write_bytes(content)
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["crc32"]
    seal(folder, manifest)
    with pytest.raises(CheckpointError, match=f"step_00000001 cannot be read: .*{message}"):
        store.read(1)


@pytest.mark.parametrize("value", [17, "~~", "", deflated_text("no JSON")])
def test_a_manifest_whose_listing_cannot_be_inflated_is_no_manifest(tmp_path: Path, value: Any) -> None:
    store = CheckpointStore(tmp_path, Policy())
    write(store)
    manifest = json.loads((store.path(1) / "manifest.json").read_text())
    del manifest["crc32"]
    seal(store.path(1), manifest | {"made of": {"deflated": value}})
    with pytest.raises(CheckpointError, match="step_00000001 has no readable manifest"):
        store.manifest(1)


def test_what_becomes_more_than_it_may_is_neither_written_nor_read(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "a" * 100_000
    packed = deflated(text)
    assert packed is not None
    assert inflated_text(deflated_text(text)) == text
    monkeypatch.setattr(deflate, "GENEROUS", 1000)
    assert deflated(text) is None
    assert deflated_text(text) is None
    with pytest.raises(ValueError, match=r"bytes become more than .*; they are made to fill the memory"):
        inflated(packed)
