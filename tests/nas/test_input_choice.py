"""A choice between tensors; the numbers are those of the behaviours of the research page, section InputChoice."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from treadle import nas
from treadle.errors import ConfigError


class Net(nn.Module):
    """Calls a choice with as many tensors as it has candidates."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.skip = nas.InputChoice(**{"n_candidates": 3, "label": "skip", **options})

    def forward(self, inputs: Tensor) -> Any:
        return self.skip([inputs * (place + 1) for place in range(self.count)])

    count = 3


@pytest.mark.parametrize(("n_chosen", "count"), [(1, 3), (2, 3), (None, 8)])
def test_input_choice_1_there_are_as_many_architectures_as_subsets(n_chosen: int | None, count: int) -> None:
    space = nas.Space(Net(n_chosen=n_chosen))
    every = [architecture["skip"] for architecture in space.enumerate()]
    assert (space.size(), len(every)) == (count, count)
    assert ([] in every) is (n_chosen is None)
    assert all(space.sample(seed)["skip"] in every for seed in range(20))


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [("sum", lambda x: x + 3 * x), ("mean", lambda x: (x + 3 * x) / 2), ("concat", lambda x: torch.cat([x, 3 * x], 1))],
)
def test_input_choice_2_a_pick_is_joined_as_the_reduction_says(reduction: str, expected: Any) -> None:
    inputs = torch.randn(4, 2)
    network = nas.freeze(Net(n_chosen=2, reduction=reduction), {"skip": [0, 2]})
    assert torch.equal(network(inputs), expected(inputs))


def test_input_choice_2_without_a_reduction_the_pick_is_a_list() -> None:
    inputs = torch.randn(4, 2)
    first, second = nas.freeze(Net(n_chosen=2, reduction="none"), {"skip": [0, 2]})(inputs)
    assert torch.equal(first, inputs)
    assert torch.equal(second, inputs * 3)


@pytest.mark.parametrize("reduction", ["sum", "mean", "concat"])
def test_input_choice_3_a_single_pick_is_that_very_tensor(reduction: str) -> None:
    choice = nas.InputChoice(2, reduction=reduction, label="skip")
    one, other = torch.zeros(1, 2), torch.ones(1, 2)
    assert choice(one, other) is one
    assert nas.freeze(nn.ModuleList([choice]), {"skip": [1]})[0]([one, other]) is other


@pytest.mark.parametrize(
    ("reduction", "shape"), [("sum", (4, 2)), ("mean", (4, 2)), ("concat", (4, 0)), ("none", None)]
)
def test_input_choice_4_an_empty_pick_is_neutral(reduction: str, shape: tuple[int, ...] | None) -> None:
    output = nas.freeze(Net(n_chosen=None, reduction=reduction), {"skip": []})(torch.ones(4, 2))
    if shape is None:
        assert output == []
    else:
        assert output.shape == shape
        assert not output.any()


def test_input_choice_5_a_wrong_number_of_tensors_is_an_error_with_both_numbers() -> None:
    net = Net()
    net.count = 2
    with pytest.raises(ConfigError, match="skip chooses from 3 tensors and was called with 2"):
        net(torch.zeros(1, 1))


def test_input_choice_8_shared_labels_have_one_pick() -> None:
    model = nn.ModuleList([Net(), Net()])
    assert nas.size(model) == 3
    network = nas.freeze(model, {"skip": [2]})
    assert [tuple(part.skip.chosen) for part in network] == [(2,), (2,)]


def test_input_choice_10_nothing_of_the_search_is_left_in_a_frozen_choice() -> None:
    network = nas.freeze(Net(n_chosen=2), {"skip": [0, 2]})
    assert {type(module).__module__ for module in network.modules()} == {__name__, "treadle.nas.space.fixed_modules"}
    assert not network.state_dict()
    inputs = torch.randn(2, 2)
    assert torch.equal(torch.compile(network, backend="eager", fullgraph=True)(inputs), 4 * inputs)
    assert "[0, 2], reduction='sum'" in repr(network)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_candidates": 0}, "give no tensors"),
        ({"n_chosen": 4}, "n_chosen=4 must lie between 1 and 3"),
        ({"reduction": "max"}, "reduction='max' is unknown; use one of"),
        ({"default": [5]}, r"default=\[5\] is none of lists of 1 of \[0, 1, 2\]"),
        ({"n_chosen": 2, "weights": [1, 1, 1]}, "weights are for n_chosen=1"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Net(**options)


def test_tensors_may_be_named() -> None:
    choice = nas.InputChoice(choose_from=["left", "right"], label="skip")
    assert choice.n_candidates == 2
