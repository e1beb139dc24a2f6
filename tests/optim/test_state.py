"""An optimizer's state: it comes back to the parameters it belongs to, and to no others."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, NAdam

from treadle import Trainer
from treadle.checkpoint import read_file, write_file
from treadle.errors import CheckpointError
from treadle.optim.state import OptimizerState


def model(hidden: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, hidden), nn.Linear(hidden, 1))


def step(net: nn.Module, optimizer: torch.optim.Optimizer, times: int = 1) -> None:
    for _ in range(times):
        net(torch.ones(4, 2)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("kind", [SGD, Adam, AdamW])
def test_an_optimizer_goes_on_as_if_it_had_never_stopped(kind: Any, tmp_path: Path) -> None:
    options = {"lr": 0.01, **({"momentum": 0.9} if kind is SGD else {})}
    whole = model()
    optimizer = kind(whole.parameters(), **options)
    step(whole, optimizer, 3)
    write_file(tmp_path / "state", OptimizerState(optimizer, whole).state_dict())
    half = model()
    half.load_state_dict(whole.state_dict())
    other = kind(half.parameters(), **{**options, "lr": 9.0})
    OptimizerState(other, half).load_state_dict(read_file(tmp_path / "state"))
    for net, one in ((whole, optimizer), (half, other)):
        step(net, one, 3)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), half.parameters(), strict=True))


def test_the_state_names_its_parameters_and_their_shapes() -> None:
    net = model()
    state = OptimizerState(SGD(net.parameters(), lr=0.1), net).state_dict()
    assert state["parameters"] == [["0.weight", [3, 2]], ["0.bias", [3]], ["1.weight", [1, 3]], ["1.bias", [1]]]


def test_parameters_of_another_shape_are_refused_by_name() -> None:
    small, large = model(3), model(4)
    state = OptimizerState(Adam(small.parameters()), small).state_dict()
    expected = r"of other parameters: 0\.weight \(3, 2\) in the checkpoint, 0\.weight \(4, 2\) in this trainer"
    with pytest.raises(CheckpointError, match=expected):
        OptimizerState(Adam(large.parameters()), large).load_state_dict(state)


def test_parameters_in_another_order_are_refused() -> None:
    net = model()
    state = OptimizerState(Adam(net.parameters()), net).state_dict()
    with pytest.raises(CheckpointError, match=r"0\.weight \(3, 2\) in the checkpoint, 1\.bias \(1,\) in this trainer"):
        OptimizerState(Adam(reversed(list(net.parameters()))), net).load_state_dict(state)


def test_another_number_of_parameters_is_refused() -> None:
    net = model()
    state = OptimizerState(Adam(net.parameters()), net).state_dict()
    with pytest.raises(CheckpointError, match=r"\[4\].* in the checkpoint, .*\[2\].* now"):
        OptimizerState(Adam(net[0].parameters()), net).load_state_dict(state)


def test_the_same_parameters_in_other_groups_are_refused() -> None:
    net = model()
    state = OptimizerState(Adam(net.parameters()), net).state_dict()
    groups = [{"params": list(net[0].parameters()), "lr": 0.5}, {"params": list(net[1].parameters())}]
    with pytest.raises(CheckpointError, match="group"):
        OptimizerState(Adam(groups), net).load_state_dict(state)


def test_the_state_of_another_kind_of_optimizer_is_refused() -> None:
    net = model()
    momentum = SGD(net.parameters(), lr=0.1, momentum=0.9)
    step(net, momentum)
    state = OptimizerState(momentum, net).state_dict()
    with pytest.raises(CheckpointError, match=r"SGD.*Adam"):
        OptimizerState(Adam(net.parameters()), net).load_state_dict(state)


def test_settings_that_change_the_numbers_come_from_the_checkpoint_and_how_they_are_done_does_not() -> None:
    net = model()
    saved = Adam(net.parameters(), lr=0.5, foreach=False)
    step(net, saved)
    present = Adam(net.parameters(), lr=0.1, foreach=True)
    OptimizerState(present, net).load_state_dict(OptimizerState(saved, net).state_dict())
    (group,) = present.param_groups
    assert (group["lr"], group["foreach"]) == (0.5, True)


def test_a_checkpoint_that_a_recorded_run_wrote_does_not_say_where_an_optimizer_counts(tmp_path: Path) -> None:
    net = model()
    recorded = NAdam(net.parameters(), lr=0.5)
    step(net, recorded)
    recorded.param_groups[0]["capturable"] = True  # as while steps are recorded on a GPU; no CPU takes it
    Trainer(net, None, recorded, callbacks=()).save_checkpoint(tmp_path / "best.pt")
    present = NAdam(net.parameters(), lr=0.1)
    Trainer(net, None, present, callbacks=()).load_checkpoint(tmp_path / "best.pt")
    (group,) = present.param_groups
    assert (group["lr"], group["capturable"]) == (0.5, False)
    step(net, present)


def test_the_state_that_was_loaded_can_be_loaded_again() -> None:
    """An optimizer keeps the tensors it is given, so each load must give it copies."""
    net = model()
    optimizer = SGD(net.parameters(), lr=0.1, momentum=0.9)
    step(net, optimizer)
    tracked = OptimizerState(optimizer, net)
    state = tracked.state_dict()
    kept = {key: value["momentum_buffer"].clone() for key, value in state["optimizer"]["state"].items()}
    other = SGD(net.parameters(), lr=0.1, momentum=0.9)
    OptimizerState(other, net).load_state_dict(state)
    step(net, other, 2)
    for key, value in state["optimizer"]["state"].items():
        assert torch.equal(value["momentum_buffer"], kept[key])


def test_a_parameter_outside_the_model_is_saved_without_a_name() -> None:
    net, temperature = model(), nn.Parameter(torch.zeros(1))
    state = OptimizerState(SGD([temperature], lr=0.1), net).state_dict()
    assert state["parameters"] == [["?", [1]]]


def test_a_state_that_is_loaded_lies_in_memory_as_its_weight_does() -> None:
    model = nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    model(torch.ones(1, 2, 4, 4)).sum().backward()
    optimizer.step()
    state = OptimizerState(optimizer, model).state_dict()
    # A file keeps numbers and shapes, but no strides.
    for entry in state["optimizer"]["state"].values():
        entry.update({name: value.clone().contiguous() for name, value in entry.items()})
    moments = optimizer.state[model.weight]["exp_avg"].clone()
    OptimizerState(optimizer, model).load_state_dict(state)
    loaded = optimizer.state[model.weight]["exp_avg"]
    assert loaded.stride() == model.weight.stride()
    assert torch.equal(loaded, moments)
