"""`treadle export`: the weights of a run as one plain file."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.cli.conftest import Treadle
from treadle.checkpoint import CheckpointStore, Policy


@pytest.fixture
def run(project: Path, treadle: Treadle) -> Path:
    """A finished run."""
    treadle("train", "configs/small.py")
    return Path("runs/small")


def weights_at(run: Path, name: str) -> dict[str, torch.Tensor]:
    store = CheckpointStore(run / "checkpoints", Policy())
    found: dict[str, torch.Tensor] = store.read(store.pointer(name) or 0, rank=0)["tracked"]["model"]
    return found


def assert_equal(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_the_last_weights_are_written_as_safetensors(run: Path, treadle: Treadle) -> None:
    assert treadle("export", "runs/small").stdout == "4 tensors written to model.safetensors\n"
    assert_equal(load_file("model.safetensors"), weights_at(run, "last"))


def test_the_best_weights_are_written_for_torch(run: Path, treadle: Treadle) -> None:
    treadle("export", "runs/small", "--best", "--torch", "-o", "weights.pt")
    assert_equal(torch.load("weights.pt", weights_only=True), weights_at(run, "best"))


@pytest.mark.parametrize("name", ["weights.pt", "weights.pth"])
def test_a_name_of_torchs_is_enough_for_a_file_that_torch_loads(run: Path, treadle: Treadle, name: str) -> None:
    treadle("export", "runs/small", "-o", name)
    assert_equal(torch.load(name, weights_only=True), weights_at(run, "last"))
    treadle("export", name, "-o", "again.safetensors")
    assert_equal(load_file("again.safetensors"), weights_at(run, "last"))
    treadle("export", "again.safetensors", "--torch")
    assert_equal(torch.load("model.pt", weights_only=True), weights_at(run, "last"))


@pytest.mark.parametrize(
    ("options", "told"),
    {
        ("-o", "m.onnx"): "a Network is exported by running it on an example; pass --example with a file of its inputs",
        ("-o", "m.pt2", "--torch"): "torch.export.save(torch.export.export(model, example), path)",
        ("-o", "m.ts"): "torch.jit.trace(model, example).save(path)",
        ("--torch", "-o", "m.safetensors"): "its name says safetensors; use .pt",
    }.items(),
)
def test_what_cannot_be_written_is_refused(run: Path, treadle: Treadle, options: tuple[str, ...], told: str) -> None:
    text = " ".join(treadle("export", "runs/small", *options, status=1).stderr.split())
    assert told in text
    assert not Path(options[options.index("-o") + 1]).exists()


def test_a_folder_without_checkpoints_is_refused(project: Path, treadle: Treadle) -> None:
    text = treadle("export", "configs", "-o", "x", status=1).stderr
    assert text == "treadle export: configs holds no whole checkpoint\n"


def test_a_file_that_cannot_be_written_is_refused(run: Path, treadle: Treadle) -> None:
    Path("full").write_text("a file, and no folder")
    text = treadle("export", "runs/small", "-o", "full/weights.safetensors", status=1).stderr
    assert text.startswith("treadle export: cannot write full/weights.safetensors: ")
