"""A choice between modules; the numbers are those of the behaviours of the research page, section LayerChoice."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from treadle import nas
from treadle.errors import ConfigError


def three(label: str | None = "op") -> nas.LayerChoice:
    return nas.LayerChoice([nn.Linear(2, 2), nn.Identity(), nn.Tanh()], label=label)


class Net(nn.Module):
    """Two choices, one of them inside of a candidate of the other."""

    def __init__(self) -> None:
        super().__init__()
        inner = nas.LayerChoice({"relu": nn.ReLU(), "tanh": nn.Tanh()})
        self.outer = nas.LayerChoice({"deep": nn.Sequential(nn.Linear(2, 2), inner), "flat": nn.Identity()})

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.outer(inputs)
        return output


def test_layer_choice_1_a_list_of_three_candidates_is_one_decision_between_three_positions() -> None:
    decisions = nas.Space(nn.Sequential(three())).decisions
    assert {label: decision.candidates for label, decision in decisions.items()} == {"op": (0, 1, 2)}


def test_layer_choice_2_a_dict_of_candidates_is_decided_by_name() -> None:
    model = nn.Sequential(nas.LayerChoice({"wide": nn.Linear(2, 8), "narrow": nn.Linear(2, 4)}, label="op"))
    assert nas.Space(model).decisions["op"].candidates == ("wide", "narrow")
    assert nas.freeze(model, {"op": "narrow"})(torch.zeros(1, 2)).shape == (1, 4)


def test_layer_choice_3_choices_that_share_a_label_are_one_decision() -> None:
    model = nn.Sequential(three(), three())
    assert list(nas.Space(model).decisions) == ["op"]
    assert nas.size(model) == 3
    assert [type(module) for module in nas.freeze(model, {"op": 2})] == [nn.Tanh, nn.Tanh]


def test_layer_choice_4_one_label_for_different_candidates_is_an_error_that_names_it_and_both_modules() -> None:
    model = nn.Sequential(three(), nas.LayerChoice({"a": nn.ReLU(), "b": nn.Tanh()}, label="op"))
    message = r"label 'op' stands for \[0, 1, 2\] at 0 and for \['a', 'b'\] at 1; give one of them another label"
    with pytest.raises(ConfigError, match=message):
        nas.Space(model)


def test_layer_choice_5_without_a_label_it_is_named_after_its_place_whatever_is_added_elsewhere() -> None:
    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.ModuleDict({"op": three(None)})

    class Large(Small):
        def __init__(self) -> None:
            nn.Module.__init__(self)
            self.before = three(None)
            self.block = nn.ModuleDict({"norm": nn.LayerNorm(2), "op": three(None)})

    assert list(nas.Space(Small()).decisions) == ["block.op"]
    assert list(nas.Space(Large()).decisions) == ["before", "block.op"]


def test_layer_choice_5_before_anybody_looked_a_missing_label_says_how_to_set_it() -> None:
    with pytest.raises(ConfigError, match=r"has no label yet; give it one, label=..., or read the model"):
        three(None).key  # noqa: B018
    with pytest.raises(ConfigError, match=r"the model itself is a LayerChoice without a label; give it label="):
        nas.Space(three(None))


def test_layer_choice_6_the_inner_decision_is_needed_only_where_the_outer_one_takes_its_branch() -> None:
    space = nas.Space(Net())
    assert list(space.enumerate()) == [
        {"outer": "deep", "outer.deep.1": "relu"},
        {"outer": "deep", "outer.deep.1": "tanh"},
        {"outer": "flat"},
    ]
    assert space.size() == 3
    assert isinstance(nas.freeze(Net(), {"outer": "flat"}).outer, nn.Identity)
    with pytest.raises(ConfigError, match=r"'outer.deep.1' is missing; it takes one of \['relu', 'tanh'\]"):
        nas.freeze(Net(), {"outer": "deep"})


def test_layer_choice_7_a_space_forwards_with_its_default_candidates() -> None:
    first, second = nn.Linear(2, 3), nn.Linear(2, 3)
    inputs = torch.randn(4, 2)
    assert torch.equal(nas.LayerChoice([first, second])(inputs), first(inputs))
    assert torch.equal(nas.LayerChoice([first, second], default=1)(inputs), second(inputs))
    assert nas.Space(nn.Sequential(nas.LayerChoice([first, second], default=1))).default() == {"0": 1}
    with pytest.raises(KeyError, match=r"no candidate 'thid'; it has \['first', 'third'\]; did you mean 'third'"):
        nas.LayerChoice({"first": first, "third": second}, default="thid")


def test_layer_choice_8_samples_follow_the_prior_weights() -> None:
    weights = [0.5, 0.2, 0.3]
    model = nn.Sequential(nas.LayerChoice([nn.ReLU(), nn.Tanh(), nn.Identity()], "op", weights=weights))
    space = nas.Space(model)
    drawn = Counter(space.sample(seed)["op"] for seed in range(10_000))
    # Four standard deviations of the rarest are 0.016.
    assert [drawn[place] / 10_000 for place in range(3)] == pytest.approx(weights, abs=0.02)


@pytest.mark.parametrize("weights", [[1.0], [0.0, 0.0, 0.0], [1.0, -1.0, 1.0]])
def test_layer_choice_8_weights_that_cannot_be_meant_are_refused(weights: list[float]) -> None:
    with pytest.raises(ConfigError, match=r"LayerChoice op: weights=.* must be 3 numbers from 0, not all 0"):
        nas.LayerChoice([nn.ReLU(), nn.Tanh(), nn.Identity()], "op", weights=weights)


def test_layer_choice_9_a_candidate_can_be_replaced_and_an_unknown_one_raises() -> None:
    choice = three()
    choice[1] = nn.Sigmoid()
    model = nn.Sequential(choice)
    assert isinstance(nas.freeze(model, {"op": 1})[0], nn.Sigmoid)
    assert [type(candidate) for candidate in choice] == [nn.Linear, nn.Sigmoid, nn.Tanh]
    with pytest.raises(IndexError, match=r"op has no candidate 3; it has \[0, 1, 2\]"):
        choice[3]
    with pytest.raises(IndexError, match="no candidate 7"):
        choice[7] = nn.ReLU()
    with pytest.raises(ConfigError, match=r"op\[0\] must be a module, not a str"):
        choice[0] = "relu"  # type: ignore[assignment]


def test_a_candidate_can_be_left_out() -> None:
    choice = nas.LayerChoice([nn.Linear(2, 2), nn.Identity(), nn.Tanh()], "op", weights=[1, 2, 3], default=2)
    del choice[0]
    assert [type(candidate) for candidate in choice] == [nn.Identity, nn.Tanh]
    assert (len(choice), choice.weights, choice.candidates) == (2, (2.0, 3.0), [0, 1])
    named = nas.LayerChoice({"a": nn.ReLU(), "b": nn.Tanh()}, "op")
    del named["a"]
    assert (named.names, named.default) == (["b"], "b")
    with pytest.raises(ConfigError, match="'b' is the last candidate"):
        del named["b"]


def test_any_name_may_name_a_candidate_but_one_with_a_dot() -> None:
    names = ["key", "default", "weights", "forward", "training"]
    choice = nas.LayerChoice({name: nn.Linear(1, 1) for name in names}, label="op")
    assert choice.names == names
    assert sorted(choice.state_dict())[0] == "default.bias"
    assert nas.freeze(nn.Sequential(choice), {"op": "key"})(torch.zeros(1, 1)).shape == (1, 1)
    with pytest.raises(ConfigError, match=r"'a\.b' cannot be the name of a candidate; leave out dots"):
        nas.LayerChoice({"a.b": nn.ReLU()})


@pytest.mark.parametrize(
    ("candidates", "message"),
    [([], "LayerChoice op has no candidates"), ([len], "candidate 0 is a builtin_function_or_method; give a module")],
)
def test_candidates_that_cannot_be_meant_are_refused(candidates: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        nas.LayerChoice(candidates, label="op")


def test_a_space_moves_saves_and_compiles_like_any_module() -> None:
    model = Net()
    names = [name for name, _ in model.named_parameters()]
    assert names == ["outer.deep.0.weight", "outer.deep.0.bias"]
    other = Net()
    other.load_state_dict(model.state_dict())
    assert model.to(torch.float64)(torch.zeros(1, 2, dtype=torch.float64)).dtype == torch.float64
    inputs = torch.randn(3, 2)
    compiled = torch.compile(other, backend="eager", fullgraph=True)
    assert torch.equal(compiled(inputs), other(inputs))
    assert nas.freeze(compiled, {"outer": "flat"})(inputs) is inputs
