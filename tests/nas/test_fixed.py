"""Putting modules of your own in the place of choices."""

from typing import Any

import pytest
import torch
from torch import nn

from treadle import nas
from treadle.errors import ConfigError


class Mean(nn.Module):
    """Takes the mean over all candidates."""

    def __init__(self, choice: nas.LayerChoice) -> None:
        super().__init__()
        self.name = choice.key
        self.candidates = nn.ModuleDict(choice.named_children())

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.stack([candidate(inputs) for candidate in self.candidates.values()]).mean(0)


class Net(nn.Module):
    """A nested choice, a shared label and a choice between inputs."""

    def __init__(self) -> None:
        super().__init__()
        inner = nas.LayerChoice({"relu": nn.ReLU(), "tanh": nn.Tanh()})
        self.outer = nas.LayerChoice([nn.Sequential(nn.Linear(2, 2), inner), nn.Identity()], label="outer")
        self.again = nas.LayerChoice([nn.Identity(), nn.Identity()], label="outer")
        self.skip = nas.InputChoice(2, label="skip")


def test_every_layer_choice_is_replaced_nested_ones_too() -> None:
    net = Net()
    modules: list[Any] = []
    assert nas.replace_layer_choice(net, Mean, modules) is modules
    assert [name for name, _ in modules] == ["outer.0.1", "outer", "outer"]
    assert not [module for module in net.modules() if isinstance(module, nas.LayerChoice)]
    assert net.outer.candidates["0"][1] is modules[0][1]
    inputs = torch.randn(3, 2)
    hidden = net.outer.candidates["0"][0](inputs)
    expected = ((hidden.relu() + hidden.tanh()) / 2 + inputs) / 2
    torch.testing.assert_close(net.outer(inputs), expected)


def test_a_choice_that_is_used_in_two_places_is_replaced_once() -> None:
    net = Net()
    net.twice = net.outer
    modules = nas.replace_layer_choice(net, Mean)
    assert net.twice is net.outer
    assert len(modules) == 3


def test_a_replacement_may_keep_the_choice() -> None:
    class Keeping(nn.Module):
        def __init__(self, choice: nas.LayerChoice) -> None:
            super().__init__()
            self.choice = choice

    assert len(nas.replace_layer_choice(Net(), Keeping)) == 3


def test_input_choices_are_replaced_and_layers_left_alone() -> None:
    net = Net()
    ((name, module),) = nas.replace_input_choice(net, lambda choice: nn.Identity())
    assert (name, net.skip) == ("skip", module)
    assert isinstance(net.outer, nas.LayerChoice)


def test_the_model_itself_cannot_be_replaced() -> None:
    with pytest.raises(ConfigError, match="the model itself is a LayerChoice, which cannot be replaced in place"):
        nas.replace_layer_choice(Net().outer, Mean)
