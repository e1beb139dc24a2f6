"""Checkpoints of other systems are read without running what is in them."""

import argparse
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from treadle.checkpoint.importers.systems import read_foreign
from treadle.errors import CheckpointError

ran: list[str] = []


class Hyper(dict[str, Any]):
    """As Lightning has its own class for them."""


def spring(text: str) -> None:
    ran.append(text)


class Trap:
    """Calls a function when a pickle is loaded."""

    def __reduce__(self) -> Any:
        return spring, ("it ran",)


class HiddenTrap:
    """Calls a function that another one returns."""

    def __reduce__(self) -> Any:
        return ran.append, ("it ran",)


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_a_checkpoint_of_lightning_gives_weights_optimizer_and_facts(tmp_path: Path) -> None:
    model, optimizer = trained()
    content = {
        "epoch": 3,
        "global_step": 40,
        "pytorch-lightning_version": "2.4.0",
        "state_dict": model.state_dict(),
        "optimizer_states": [optimizer.state_dict()],
        "lr_schedulers": [],
        "hyper_parameters": Hyper(width=8, name="wide"),
        "callbacks": {"ModelCheckpoint{}": {"best_model_score": torch.tensor(0.5)}},
    }
    torch.save(content, tmp_path / "a.ckpt")
    found = read_foreign(tmp_path / "a.ckpt")
    assert found.system == "Lightning"
    assert torch.equal(found.weights["weight"], model.state_dict()["weight"])
    assert found.optimizer is not None
    assert torch.equal(found.optimizer["state"][0]["exp_avg"], optimizer.state_dict()["state"][0]["exp_avg"])
    assert found.facts["hyper_parameters"] == {"width": 8, "name": "wide"}
    assert (found.facts["epoch"], found.facts["global_step"]) == (3, 40)
    assert [name.rpartition(".")[2] for name in found.passed_over] == ["Hyper"]


def test_nothing_in_a_file_is_run(tmp_path: Path) -> None:
    model, _ = trained()
    arguments = argparse.Namespace(rate=0.1)
    torch.save({"state_dict": model.state_dict(), "trap": Trap(), "args": arguments}, tmp_path / "a.ckpt")
    found = read_foreign(tmp_path / "a.ckpt")
    assert ran == []
    assert set(found.weights) == {"weight", "bias"}
    assert "argparse.Namespace" in found.passed_over
    torch.save({"state_dict": model.state_dict(), "trap": HiddenTrap()}, tmp_path / "hidden.ckpt")
    with pytest.raises(CheckpointError, match="without running code: it calls what another call would return"):
        read_foreign(tmp_path / "hidden.ckpt")
    assert ran == []


def test_a_checkpoint_of_detectron2_and_one_of_pytorch_accelerated_are_known(tmp_path: Path) -> None:
    model, optimizer = trained()
    states = {"optimizer": optimizer.state_dict(), "scheduler": {"last_epoch": 5}}
    torch.save({"model": model.state_dict(), "iteration": 9, **states}, tmp_path / "d2.pth")
    found = read_foreign(tmp_path / "d2.pth")
    assert (found.system, found.facts["iteration"], found.optimizer is not None) == ("detectron2", 9, True)
    content = {"model_state_dict": model.state_dict(), "optimizer_state_dict": optimizer.state_dict()}
    torch.save(content, tmp_path / "pa.pt")
    assert read_foreign(tmp_path / "pa.pt").system == "pytorch-accelerated"


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol_of_pickles_is_read_and_nothing_in_it_run(protocol: int, tmp_path: Path) -> None:
    model, optimizer = trained()
    content = {"state_dict": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 2}
    torch.save({**content, "trap": Trap(), "settings": Hyper(width=8)}, tmp_path / "a.pth", pickle_protocol=protocol)
    found = read_foreign(tmp_path / "a.pth")
    assert torch.equal(found.weights["weight"], model.state_dict()["weight"])
    assert found.optimizer is not None
    assert found.facts == {"epoch": 2, "settings": {"width": 8}}
    assert sorted(name.rpartition(".")[2] for name in found.passed_over) == ["Hyper", "spring"]
    torch.save({**content, "trap": HiddenTrap()}, tmp_path / "hidden.pth", pickle_protocol=protocol)
    with pytest.raises(CheckpointError, match="without running code: it calls what another call would return"):
        read_foreign(tmp_path / "hidden.pth")
    assert ran == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.complex64, torch.float8_e4m3fn, torch.uint16], ids=str)
def test_weights_of_every_type_are_read(dtype: torch.dtype, tmp_path: Path) -> None:
    weight = torch.tensor([[1, 2, 3], [4, 5, 6]]).to(dtype)
    torch.save({"whole": weight, "part": weight[1], "tied": weight}, tmp_path / "a.pth")
    found = read_foreign(tmp_path / "a.pth").weights
    assert {name: one.dtype for name, one in found.items()} == dict.fromkeys(("whole", "part", "tied"), dtype)
    for name, expected in (("whole", weight), ("part", weight[1]), ("tied", weight)):
        assert torch.equal(found[name].view(torch.uint8), expected.view(torch.uint8))


def test_a_file_of_before_torch_1_6_is_read(tmp_path: Path) -> None:
    model, _ = trained()
    torch.save({"state_dict": model.state_dict()}, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    assert torch.equal(read_foreign(tmp_path / "old.pth").weights["weight"], model.state_dict()["weight"])
    torch.save({"trap": Trap()}, tmp_path / "trap.pth", _use_new_zipfile_serialization=False)
    with pytest.raises(CheckpointError, match="holds no plain weights that can be read safely"):
        read_foreign(tmp_path / "trap.pth")
    assert ran == []


def test_plain_weights_may_have_the_prefix_of_data_parallelism(tmp_path: Path) -> None:
    model, _ = trained()
    state = OrderedDict((f"module.{name}", value) for name, value in model.state_dict().items())
    torch.save(state, tmp_path / "plain.pth")
    found = read_foreign(tmp_path / "plain.pth")
    assert (found.system, set(found.weights), found.facts) == ("torch", {"weight", "bias"}, {})


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"there is no file .*none.ckpt"):
        read_foreign(tmp_path / "none.ckpt")
    (tmp_path / "bad.ckpt").write_bytes(b"no checkpoint at all")
    with pytest.raises(CheckpointError, match="holds no plain weights that can be read safely"):
        read_foreign(tmp_path / "bad.ckpt")
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(CheckpointError, match="holds a list; weights come as a dict"):
        read_foreign(tmp_path / "list.pt")
    torch.save(argparse.Namespace(rate=0.1), tmp_path / "object.pt")
    with pytest.raises(CheckpointError, match=r"holds a argparse\.Namespace; weights come as a dict"):
        read_foreign(tmp_path / "object.pt")
    endless: list[Any] = []
    endless.append(endless)
    torch.save({"weight": torch.ones(1), "loop": endless}, tmp_path / "loop.pt")
    with pytest.raises(CheckpointError, match=r"loop\.pt holds something that holds itself"):
        read_foreign(tmp_path / "loop.pt")
    torch.save({"epoch": 1}, tmp_path / "empty.pt")
    with pytest.raises(CheckpointError, match="there are no weights among"):
        read_foreign(tmp_path / "empty.pt")
    (tmp_path / "model_0000999").mkdir()
    (tmp_path / "model_0000999" / "model").mkdir()
    with pytest.raises(CheckpointError, match="is a checkpoint of LiBai's, which only OneFlow can read"):
        read_foreign(tmp_path / "model_0000999")
