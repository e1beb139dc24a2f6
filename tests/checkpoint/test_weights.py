"""Files of `torch.save` are imported on request: weights, the layout of pytorch-accelerated, nothing that runs."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR

from tests.interrupting import assert_same_bits, momentum, plain_network, samples
from treadle import Trainer
from treadle.checkpoint import export_torch, import_torch
from treadle.errors import CheckpointError


def filled(value: float) -> nn.Module:
    """Return the network with one value in every weight."""
    model = plain_network()
    for parameter in model.parameters():
        parameter.data.fill_(value)
    return model


def trainer_of(model: nn.Module, **kwargs: Any) -> Trainer:
    return Trainer(model, nn.MSELoss(), momentum(model.parameters()), device="cpu", callbacks=(), **kwargs)


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    """A checkpoint as pytorch-accelerated writes it, after one update of every weight and of the schedule."""
    model = filled(0.5)
    optimizer = momentum(model.parameters())
    scheduler = StepLR(optimizer, step_size=1, gamma=0.5)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    scheduler.step()
    state = {
        "model_state_dict": model.state_dict(),
        "optimizer_state_dict": optimizer.state_dict(),
        "scheduler_state_dict": scheduler.state_dict(),
        "epoch": 3,
    }
    torch.save(state, tmp_path / "checkpoint.pt")
    return tmp_path / "checkpoint.pt"


def test_the_layout_of_pytorch_accelerated_brings_its_weights_and_what_was_kept_beside_them(layout: Path) -> None:
    trainer = trainer_of(filled(9.0))
    state = trainer.import_checkpoint(layout)
    assert state["epoch"] == 3
    assert_same_bits(trainer.model.state_dict(), state["model_state_dict"])
    assert not trainer.optimizer.state


def test_the_optimizer_of_the_layout_comes_only_when_asked_for(layout: Path) -> None:
    trainer = trainer_of(filled(9.0))
    state = trainer.import_checkpoint(layout, load_optimizer=True)
    assert_same_bits(trainer.optimizer.state_dict(), state["optimizer_state_dict"])
    # After one step it is the gradient, and a tenth of the weight for its decay.
    assert all((entry["momentum_buffer"] == 1.05).all() for entry in trainer.optimizer.state.values())


def test_the_schedule_of_the_layout_comes_only_when_asked_for(layout: Path) -> None:
    trainer = trainer_of(filled(9.0))
    trainer.train(samples(), 1, create_scheduler_fn=lambda optimizer: StepLR(optimizer, step_size=1, gamma=0.5))
    moved = trainer.scheduler.state_dict()["last_epoch"]
    trainer.import_checkpoint(layout)
    assert trainer.scheduler.state_dict()["last_epoch"] == moved > 1
    trainer.import_checkpoint(layout, load_scheduler=True)
    assert trainer.scheduler.state_dict()["last_epoch"] == 1


@pytest.mark.parametrize("prefix", ["", "module."], ids=["plain", "from data parallel training"])
@pytest.mark.parametrize("key", [None, "state_dict", "model"])
def test_weights_are_found_wherever_the_file_has_them(prefix: str, key: str | None, tmp_path: Path) -> None:
    weights = {prefix + name: value for name, value in filled(0.25).state_dict().items()}
    torch.save(weights if key is None else {key: weights, "epoch": 1}, tmp_path / "weights.pth")
    trainer = trainer_of(filled(9.0))
    trainer.import_checkpoint(tmp_path / "weights.pth")
    assert_same_bits(trainer.model.state_dict(), filled(0.25).state_dict())


def test_weights_of_another_model_are_refused_by_name(tmp_path: Path) -> None:
    torch.save({"other.weight": torch.zeros(2)}, tmp_path / "weights.pth")
    trainer = trainer_of(filled(9.0))
    with pytest.raises(CheckpointError, match=r"other\.weight"):
        trainer.import_checkpoint(tmp_path / "weights.pth")
    assert_same_bits(trainer.model.state_dict(), filled(9.0).state_dict())


def test_a_file_without_weights_says_what_it_has(tmp_path: Path) -> None:
    torch.save({"epoch": 3, "name": "run"}, tmp_path / "notes.pt")
    with pytest.raises(CheckpointError, match=r"there are no weights among \['epoch', 'name'\]"):
        trainer_of(filled(9.0)).import_checkpoint(tmp_path / "notes.pt")


@pytest.mark.parametrize("content", [[torch.zeros(2)], torch.zeros(2)], ids=["list", "Tensor"])
def test_a_file_that_holds_no_dict_is_refused(content: Any, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "weights.pt")
    message = rf"holds a {type(content).__name__}; weights come as a dict of tensors by name"
    with pytest.raises(CheckpointError, match=message):
        import_torch(tmp_path / "weights.pt")


class Payload:
    """What runs code when a plain unpickler meets it."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return Path.touch, (self.target,)


def test_a_payload_in_a_file_that_is_imported_does_not_run(tmp_path: Path) -> None:
    torch.save({"model": {"weight": torch.zeros(2)}, "extra": Payload(tmp_path / "ran")}, tmp_path / "bad.pt")
    with pytest.raises(CheckpointError, match=r"bad\.pt holds no plain weights that can be read safely"):
        import_torch(tmp_path / "bad.pt")
    assert not (tmp_path / "ran").exists()
    # Without the guard it would have.
    torch.load(tmp_path / "bad.pt", weights_only=False)
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", [b"", b"no archive"], ids=["empty", "garbage"])
def test_a_file_that_cannot_be_read_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "weights.pt").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"weights\.pt holds no plain weights that can be read safely: \w"):
        import_torch(tmp_path / "weights.pt")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"there is no file .*weights\.pt to import weights from"):
        import_torch(tmp_path / "weights.pt")


def test_exported_weights_are_read_by_torch_alone_and_imported_again(tmp_path: Path) -> None:
    weights = filled(0.75).state_dict()
    export_torch(weights, tmp_path / "weights.pt")
    assert_same_bits(torch.load(tmp_path / "weights.pt", weights_only=True), weights)
    assert_same_bits(import_torch(tmp_path / "weights.pt"), weights)


def test_weights_that_cannot_be_exported_leave_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot write .*weights\.pt"):
        export_torch({}, tmp_path / "file" / "weights.pt")
