"""The name of a file says what is in it, and what is in it is that; other names are refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from treadle import Trainer
from treadle.callbacks import ModelEmaCallback, SaveBestModelCallback
from treadle.checkpoint import export_torch, read_file, write_file
from treadle.checkpoint.format.file import FORMAT
from treadle.checkpoint.format.torch_file import write_torch
from treadle.checkpoint.importers.weights import import_weights
from treadle.config import LazyConfig
from treadle.engine.checkpointer import Checkpointer
from treadle.errors import CheckpointError, ConfigError

STATE: dict[str, Any] = {
    "weights": {"first": torch.arange(6.0).view(2, 3), "half": torch.ones(2, dtype=torch.bfloat16)},
    "scores": (0.5, None, float("inf")),
    3: "three",
    "steps": [1, 2, [3]],
}


def assert_same(found: Any, wanted: Any) -> None:
    assert type(found) is type(wanted)
    if isinstance(wanted, dict):
        assert list(found) == list(wanted)
        for key, value in wanted.items():
            assert_same(found[key], value)
    elif isinstance(wanted, torch.Tensor):
        assert found.dtype == wanted.dtype
        assert torch.equal(found, wanted)
    else:
        assert found == wanted


@pytest.mark.parametrize("name", ["a.pt", "a.pth", "a.bin", "a.ckpt", "a.th", "a.torch", "A.PT"])
def test_torch_loads_what_has_a_name_of_torchs(tmp_path: Path, name: str) -> None:
    write_file(tmp_path / name, STATE)
    assert_same(torch.load(tmp_path / name, weights_only=True), STATE)
    assert_same(torch.load(tmp_path / name, weights_only=True, mmap=True), STATE)
    assert_same(read_file(tmp_path / name), STATE)


@pytest.mark.parametrize("name", ["a.safetensors", "a", "epoch.3"])
def test_other_names_are_safetensors(tmp_path: Path, name: str) -> None:
    write_file(tmp_path / name, STATE)
    with safe_open(tmp_path / name, framework="pt") as file:
        assert set(file.keys()) == {"weights.first", "weights.half"}
    assert_same(read_file(tmp_path / name), STATE)


@pytest.mark.parametrize(
    ("name", "told"),
    {
        "m.onnx": "m.onnx: a .onnx file holds the program of a model beside its weights, which is made by running the "
        "model on an example; write the weights as .safetensors or .pt, load them into the model, and call "
        "torch.onnx.export(model, example, path)",
        "m.ts": "and call torch.jit.trace(model, example).save(path)",
        "m.PT2": "and call torch.export.save(torch.export.export(model, example), path)",
        "m.pkl": "m.pkl: a .pkl file is a pickle, which may run code when it is loaded; use .safetensors, or .pt for "
        "torch.load",
        "m.json": "is text, which weights are not; use .safetensors, or .pt for torch.load",
        "m.h5": "is the format of other libraries, which is not written here; use .safetensors, or .pt for torch.load",
        "m.jit": "and call torch.jit.trace(model, example).save(path)",
        "m.mar": "is an archive, which is not written here",
        "m.tar": "is an archive, which is not written here; use .safetensors, or .pt for torch.load",
    }.items(),
)
def test_a_name_of_another_format_is_refused_with_what_to_do(tmp_path: Path, name: str, told: str) -> None:
    model = nn.Linear(2, 2)
    trainer = Trainer(model, None, torch.optim.SGD(model.parameters(), lr=0.1), callbacks=())
    path = tmp_path / name
    attempts: list[Callable[[], Any]] = [
        lambda: write_file(path, STATE),
        lambda: trainer.save_checkpoint(path),
        lambda: export_torch(model.state_dict(), path),
        lambda: SaveBestModelCallback(path),
        lambda: ModelEmaCallback(save_path=path),
    ]
    for attempt in attempts:
        with pytest.raises(CheckpointError) as raised:
            attempt()
        assert told in str(raised.value)
    assert not list(tmp_path.iterdir())


def test_weights_for_torch_under_a_name_of_safetensors_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"to be written for torch.load, and its name says safetensors; use .pt"):
        export_torch({"a": torch.ones(1)}, tmp_path / "a.safetensors")


def test_a_checkpoint_of_a_trainer_is_one_for_torch_and_comes_back(tmp_path: Path) -> None:
    def make() -> Trainer:
        model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        return Trainer(model, nn.MSELoss(), torch.optim.Adam(model.parameters()), callbacks=())

    trainer = make()
    trainer.train(torch.utils.data.TensorDataset(torch.randn(8, 3), torch.randn(8, 3)), num_epochs=1)
    trainer.save_checkpoint(tmp_path / "model.pt", {"note": "x"})
    theirs = torch.load(tmp_path / "model.pt", weights_only=True)
    bare = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    bare.load_state_dict(theirs["model_state_dict"])
    assert_same(dict(bare.state_dict()), dict(trainer.model.state_dict()))
    for load in (make().load_checkpoint, lambda path: make().import_checkpoint(path, load_optimizer=True)):
        state = load(tmp_path / "model.pt")
        assert state["note"] == "x"
        moments = state["optimizer_state_dict"]["optimizer"]["state"]
        assert [int(moment["step"]) for moment in moments.values()] == [1] * 4


@pytest.mark.parametrize("name", ["w.pt", "w.safetensors", "plain.safetensors"])
def test_weights_are_imported_whoever_wrote_them(tmp_path: Path, name: str) -> None:
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    if name.startswith("plain"):
        save_file(model.state_dict(), tmp_path / name)
    else:
        write_file(tmp_path / name, {"model_state_dict": model.state_dict()})
    Checkpointer(other).load(tmp_path / name)
    assert torch.equal(other.weight, model.weight)
    trainer = Trainer(nn.Linear(2, 2), None, None, callbacks=())
    trainer.import_checkpoint(tmp_path / name)
    assert torch.equal(trainer.model.weight, model.weight)


def test_a_file_that_holds_no_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(b"nothing of the kind")
    with pytest.raises(CheckpointError, match="is damaged, or no file of weights"):
        import_weights(tmp_path / "a.safetensors")
    with pytest.raises(CheckpointError, match=r"there is no file .* to import weights from"):
        import_weights(tmp_path / "b.pt")


def test_the_same_state_makes_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.pt", "b.pt"):
        write_file(tmp_path / name, STATE)
    assert (tmp_path / "a.pt").read_bytes() == (tmp_path / "b.pt").read_bytes()


def test_weights_under_torchs_name_by_an_earlier_version_are_read(tmp_path: Path) -> None:
    write_file(tmp_path / "a.safetensors", STATE)
    (tmp_path / "a.safetensors").rename(tmp_path / "a.pt")
    assert_same(read_file(tmp_path / "a.pt"), STATE)


# Damage ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "told"),
    [
        (0.3, "it begins as an archive and does not end as one"),
        (0.9, "it begins as an archive and does not end as one"),
        (0.999, "its last line is cut off"),
    ],
)
def test_a_file_for_torch_that_is_cut_is_told_as_damaged(tmp_path: Path, share: float, told: str) -> None:
    write_file(tmp_path / "a.pt", STATE)
    data = (tmp_path / "a.pt").read_bytes()
    (tmp_path / "a.pt").write_bytes(data[: int(share * len(data))])
    with pytest.raises(CheckpointError, match=f"is damaged: {told}"):
        read_file(tmp_path / "a.pt")


def test_a_number_that_changed_is_noticed(tmp_path: Path) -> None:
    write_file(tmp_path / "a.pt", STATE)
    data = (tmp_path / "a.pt").read_bytes()
    place = data.index(torch.arange(6.0).numpy().tobytes())
    (tmp_path / "a.pt").write_bytes(data[:place] + b"\x01" + data[place + 1 :])
    with pytest.raises(CheckpointError, match="is damaged: its checksum differs"):
        read_file(tmp_path / "a.pt")


def test_a_file_of_a_newer_version_says_so(tmp_path: Path) -> None:
    write_torch(tmp_path / "a.pt", {"a": 1}, signed="treadle-state-9")
    with pytest.raises(CheckpointError, match="or one of a newer Treadle: 'treadle-state-9'"):
        read_file(tmp_path / "a.pt")


class Runs:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.mkdir, (self.path,)


def test_code_in_a_file_that_claims_to_be_ours_does_not_run(tmp_path: Path) -> None:
    write_torch(tmp_path / "a.pt", {"model_state_dict": {}, "x": Runs(tmp_path / "ran")}, signed=FORMAT)
    with pytest.raises(CheckpointError):
        read_file(tmp_path / "a.pt")
    assert not (tmp_path / "ran").exists()


# What is no checkpoint ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["c.py", "c.json", "c.toml"])
def test_a_config_is_written_under_a_name_of_yaml_only(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}: a config is written as YAML; give it a name that ends in .yaml"):
        LazyConfig.save({"a": 1}, tmp_path / name)
