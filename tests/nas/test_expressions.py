"""Values that are still to be decided, and what is calculated from them."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from treadle import nas
from treadle.errors import ConfigError

WIDTH = nas.ValueChoice([16, 32, 64], label="width")
DEPTH = nas.ValueChoice([1, 2], label="depth")


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (WIDTH * 2 + 1, 65),
        (1 + 2 * WIDTH, 65),
        (WIDTH - 2, 30),
        (100 - WIDTH, 68),
        (WIDTH / 64, 0.5),
        (64 / WIDTH, 2.0),
        (WIDTH // 5, 6),
        (100 // WIDTH, 3),
        (WIDTH % 5, 2),
        (33 % WIDTH, 1),
        (WIDTH**DEPTH, 1024),
        (2**DEPTH, 4),
        (-WIDTH, -32),
        (abs(-WIDTH), 32),
        (WIDTH == 32, True),
        (WIDTH != 32, False),
        (WIDTH < 32, False),
        (WIDTH <= 32, True),
        (WIDTH > 16, True),
        (WIDTH >= 64, False),
        ((WIDTH > 16) & (DEPTH == 2), True),
        ((WIDTH > 32) | (DEPTH == 1), False),
        (True & (WIDTH > 16), True),
        (False | (WIDTH > 16), True),
        (~(WIDTH > 16), False),
        (nas.maximum(WIDTH, 40, DEPTH), 40),
        (nas.minimum(WIDTH, 40), 32),
        (nas.condition(DEPTH > 1, WIDTH, "flat"), 32),
        (nas.to_int(WIDTH / 3), 10),
        (nas.to_float(DEPTH), 2.0),
        (nas.apply(lambda width, depth: [width] * depth, WIDTH, DEPTH), [32, 32]),
    ],
)
def test_an_expression_is_worth_what_python_would_make_of_it(expression: nas.Expression, expected: Any) -> None:
    assert expression.evaluate({"width": 32, "depth": 2}) == expected


def test_the_values_of_an_expression_are_listed_once() -> None:
    assert (WIDTH * 2 + 1).grid() == [33, 65, 129]
    assert (WIDTH % 16).grid() == [0]
    assert [leaf.key for leaf in (WIDTH * DEPTH + WIDTH).leaves()] == ["width", "depth"]


def test_two_leaves_of_one_label_are_one_decision() -> None:
    again = nas.ValueChoice([16, 32, 64], label="width")
    assert (WIDTH - again).grid() == [0]


def test_an_undecided_expression_is_neither_true_nor_false() -> None:
    with pytest.raises(ConfigError, match="is not decided yet, so it is neither true nor false"):
        bool(WIDTH > 16)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"candidates": []}, "has no candidates"),
        ({"candidates": [1, 1]}, "holds a value twice"),
        ({"candidates": [1, 2], "default": 3}, "default=3 is none of"),
        ({"candidates": [nn.ReLU()]}, "cannot be part of an architecture, which is plain JSON data"),
    ],
)
def test_candidates_that_cannot_be_meant_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        nas.ValueChoice(**arguments)


def test_a_value_that_is_no_candidate_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'width' is 7, which is none of \[16, 32, 64\]"):
        WIDTH.evaluate({"width": 7})
    with pytest.raises(ConfigError, match=r"says nothing of 'width'; it has \['depth'\]"):
        WIDTH.evaluate({"depth": 1})


def test_tuples_survive_the_way_through_json() -> None:
    sizes = nas.ValueChoice([(3, 3), (5, 1)], label="size")
    assert sizes.evaluate({"size": [5, 1]}) == (5, 1)
    assert (sizes == [5, 1]).evaluate({"size": [5, 1]})


class Dropping(nn.Module):
    """Uses values in its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.rate = nas.ValueChoice([0.0, 0.5])
        self.rates = [self.rate * 2, {"none": nas.ValueChoice(["a", "b"], label="letter")}]

    def forward(self, inputs: Tensor) -> Tensor:
        return F.dropout(inputs, float(self.rate))


def test_a_value_may_be_an_attribute_and_is_plain_in_a_frozen_network() -> None:
    space = nas.Space(Dropping())
    assert list(space.decisions) == ["rate", "letter"]
    inputs = torch.ones(8)
    assert torch.equal(Dropping()(inputs), inputs)
    network: Any = nas.freeze(Dropping(), {"rate": 0.5, "letter": "b"})
    assert (network.rate, network.rates) == (0.5, [1.0, {"none": "b"}])
    assert set(network(inputs).tolist()) <= {0.0, 2.0}
    assert nas.value_of(network.rate) == 0.5


def test_values_in_force_follow_whoever_decides() -> None:
    model = Dropping()
    space = nas.attach(model, nas.Fixed({"rate": 0.5, "letter": "b"}))
    assert float(model.rate) == 0.5
    assert nas.value_of(model.rates[0]) == 1.0
    nas.attach(model)
    assert float(model.rate) == 0.0
    assert space.default() == {"rate": 0.0, "letter": "a"}


def test_copies_without_a_label_are_decisions_of_their_own() -> None:
    model = nn.ModuleList([Dropping(), deepcopy(Dropping())])
    assert list(nas.Space(model).decisions) == ["0.rate", "letter", "1.rate"]


class Bounded(nn.Module):
    """A width and a depth that must not both be large."""

    def __init__(self) -> None:
        super().__init__()
        self.width, self.depth = nas.ValueChoice([1, 2, 3]), nas.ValueChoice([1, 2, 3])
        self.free = nas.ValueChoice([0, 1])
        self.limits = [nas.Constraint(self.width * self.depth <= 4, reason="it is too large")]


def test_constraints_bind_samples_enumeration_and_size() -> None:
    space = nas.Space(Bounded())
    allowed = [(one["width"], one["depth"]) for one in space.enumerate() if not one["free"]]
    assert allowed == [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (3, 1)]
    assert space.size() == 12
    drawn = [space.sample(seed) for seed in range(50)]
    assert all(one["width"] * one["depth"] <= 4 for one in drawn)
    with pytest.raises(ConfigError, match="breaks a constraint: it is too large"):
        nas.freeze(Bounded(), {"width": 3, "depth": 3, "free": 0})
    assert nas.freeze(Bounded(), {"width": 3, "depth": 1, "free": 0}).limits == [None]


def test_a_constraint_nobody_can_satisfy_is_an_error_when_drawing() -> None:
    model = Bounded()
    model.limits.append(nas.Constraint(lambda one: False, labels=["width"], reason="nothing will do"))
    with pytest.raises(ConfigError, match=r"none of 1000 architectures satisfied the constraints .*nothing will do"):
        nas.sample(model, 0)
    assert nas.size(model) == 0
    with pytest.raises(ConfigError, match="must say which labels= it looks at"):
        nas.Constraint(lambda one: True)


def test_a_constraint_may_speak_of_layers_and_does_not_bind_what_is_not_there() -> None:
    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            inner = nas.LayerChoice({"x": nn.Tanh(), "y": nn.ReLU()}, label="inner")
            self.one = nas.LayerChoice({"a": inner, "b": nn.ReLU()}, label="one")
            self.other = nas.LayerChoice({"a": nn.Tanh(), "b": nn.ReLU()}, label="other")
            self.rule = nas.Constraint((inner.value == "x") & (self.other.value == "b"))

    found = [tuple(one.values()) for one in nas.enumerate(Layers())]
    assert found == [("a", "x", "b"), ("b", "a"), ("b", "b")]
    assert nas.size(Layers()) == 3
