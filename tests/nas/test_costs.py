"""What networks cost, and what an architecture pays for it."""

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from tests.nas.small import make, small
from treadle import nas
from treadle.errors import ConfigError
from treadle.nas.costs import ExpectedCost


class Every(nn.Module):
    """Choices of every kind, one inside of another."""

    def __init__(self) -> None:
        super().__init__()
        inner = nas.LayerChoice({"wide": nn.Linear(4, 4), "none": nn.Identity()}, label="inner")
        self.layer = nas.LayerChoice(
            {"deep": nn.Sequential(nn.Linear(4, 4), inner), "none": nn.Identity()}, label="layer"
        )
        self.again = nas.LayerChoice({"deep": nn.Linear(4, 4), "none": nn.Identity()}, label="layer")
        self.cell = nas.Cell({"linear": nn.Linear(4, 4), "none": nn.Identity()}, 2, 2, 1, label="cell")
        self.blocks = nas.Repeat(nn.Linear(8, 8), (0, 3), label="depth")
        width = nas.ValueChoice([4, 8], label="width")
        self.first = nas.Built(nn.Linear, 8, width)
        self.last = nas.Built(nn.Linear, width, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.again(self.layer(inputs))
        output: Tensor = self.last(self.first(self.blocks(self.cell(hidden))))
        return output


def flops_by_running(network: nn.Module, inputs: Tensor) -> int:
    with FlopCounterMode(display=False) as counter:
        network(inputs)
    return counter.get_total_flops()


def test_the_operations_and_parameters_of_a_network_are_those_of_the_frozen_one() -> None:
    model, inputs = small(Every), torch.randn(3, 4)
    flops, parameters = nas.flops_of(model, inputs), nas.parameters_of(model)
    for seed in range(25):
        architecture = nas.sample(model, seed)
        network = nas.freeze(model, architecture)
        assert flops.of(architecture) == flops_by_running(network, inputs)
        assert parameters.of(architecture) == sum(parameter.numel() for parameter in network.parameters())


def test_a_cost_is_plain_data() -> None:
    model = small(Every)
    cost = nas.flops_of(model, torch.randn(3, 4))
    again = nas.Cost.from_dict(json.loads(json.dumps(cost.to_dict())))
    architecture = nas.sample(model, 3)
    assert (again.unit, again.of(architecture)) == ("FLOPs", cost.of(architecture))


def test_measuring_leaves_no_trace() -> None:
    model = small()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    nas.flops_of(model, torch.randn(2, 4))
    nas.latency_of(model, torch.randn(2, 4), repeats=1, warm_up=0)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert model.layer.chooser is nas.LayerChoice([nn.ReLU()]).chooser


def test_every_candidate_is_timed_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    # A clock that every linear layer moves by a second for each of its outputs.
    clock = {"now": 0.0}
    monkeypatch.setattr("treadle.nas.costs.latency.time.perf_counter", lambda: clock["now"])

    def tick(module: nn.Module, *_: Any) -> None:
        clock["now"] += module.out_features

    model, inputs = small(Every), torch.randn(3, 4)
    shared = {model.first.shared, model.last.shared}
    for module in model.modules():
        if isinstance(module, nn.Linear) and module not in shared:
            module.register_forward_hook(tick)
    cost = nas.latency_of(model, inputs, repeats=3, warm_up=1)
    for seed in range(10):
        architecture = nas.sample(model, seed)
        network = nas.freeze(model, architecture)
        own = [
            one for name, one in network.named_modules() if isinstance(one, nn.Linear) and name not in ("first", "last")
        ]
        assert cost.of(architecture) == pytest.approx(1000 * sum(one.out_features for one in own))
    assert cost.unit == "ms"


def test_a_table_gives_costs_by_label() -> None:
    model = small()
    cost = nas.Cost.from_table(model, {"layer": {"deep": 3.0, "flat": 1.0}, "inner": {"tanh": 0.5}}, fixed=2.0)
    assert cost.of({"layer": "deep", "inner": "tanh", "skip": [0]}) == 5.5
    assert cost.of({"layer": "none", "skip": [0]}) == 2.0
    with pytest.raises(ConfigError, match=r"the table has 'leyer', which the space does not know"):
        nas.Cost.from_table(model, {"leyer": {}})
    with pytest.raises(ConfigError, match=r"the table has 'wide' for 'layer', which takes one of"):
        nas.Cost.from_table(model, {"layer": {"wide": 1.0}})


def test_darts_8_the_expected_cost_is_the_mean_over_all_networks_and_its_gradient_that_of_differences() -> None:
    model = small()
    trainer = make(nas.DartsTrainer, model)
    weights = trainer.supernet.weights.double()
    with torch.no_grad():
        weights.alpha.copy_(
            torch.randn(3, 3, generator=torch.Generator().manual_seed(0)).double().masked_fill(~weights.known, 0)
        )
    cost = nas.flops_of(model, torch.randn(2, 4))
    expected = ExpectedCost(cost, weights.rows).double()
    rows = trainer.probabilities()
    by_hand = 0.0
    for architecture in nas.enumerate(model):
        share = 1.0
        for label, value in architecture.items():
            share *= rows[label][value[0] if label == "skip" else value]
        by_hand += share * cost.of(architecture)
    value = expected(weights.probabilities())
    assert value.item() == pytest.approx(by_hand)
    (gradient,) = torch.autograd.grad(value, [weights.alpha])
    assert float(gradient.abs().sum()) > 0
    for row, column in [(0, 0), (0, 2), (1, 0)]:
        sides = []
        for sign in (1, -1):
            with torch.no_grad():
                weights.alpha[row, column] += sign * 1e-5
                sides.append(expected(weights.probabilities()).item())
                weights.alpha[row, column] -= sign * 1e-5
        assert float(gradient[row, column]) == pytest.approx((sides[0] - sides[1]) / 2e-5, rel=1e-4, abs=1e-5)


class Choosy(nn.Module):
    """A choice between candidates of very different cost that are equally good."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nas.LayerChoice(
            {"large": nn.Sequential(nn.Linear(4, 64), nn.Linear(64, 4)), "small": nn.Linear(4, 4)}, label="layer"
        )
        self.head = nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.head(self.layer(inputs))
        return output


@pytest.mark.parametrize("kind", [nas.DartsTrainer, nas.GumbelDartsTrainer, nas.ProxylessTrainer])
def test_darts_8_a_larger_weight_of_the_penalty_exports_a_cheaper_network(kind: Any) -> None:
    exported = []
    for weight in (-1.0, 1.0):
        model = small(Choosy)
        cost = nas.flops_of(model, torch.randn(2, 4))
        trainer = make(kind, model, penalties=[nas.Penalty(cost, weight)], num_epochs=4)
        trainer.fit()
        exported.append(cost.of(trainer.export()))
    assert exported[1] < exported[0]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, lambda loss, cost, mean: loss + 0.1 * cost / mean),
        ({"target": 50.0}, lambda loss, cost, mean: loss + 0.1 * cost / 50),
        ({"target": 50.0, "shape": "relu"}, lambda loss, cost, mean: loss + 0.1 * max(0, cost / 50 - 1)),
        ({"target": 5000.0, "shape": "absolute"}, lambda loss, cost, mean: loss + 0.1 * abs(cost / 5000 - 1)),
        ({"combine": "multiply"}, lambda loss, cost, mean: loss * (cost / mean) ** 0.1),
    ],
)
def test_a_penalty_has_the_shape_that_was_asked_for(options: dict[str, Any], expected: Any) -> None:
    model = small()
    cost = nas.flops_of(model, torch.randn(2, 4))
    rows = {"layer": ("deep", "flat", "none"), "inner": ("relu", "tanh"), "skip": (0, 1)}
    bound = nas.Penalty(cost, 0.1, **options).bound(rows)
    weights = torch.tensor([[0.6, 0.3, 0.1], [0.5, 0.5, 0.0], [0.2, 0.8, 0.0]])
    amount = float(bound.expected(weights))
    even = torch.tensor([[1 / 3, 1 / 3, 1 / 3], [0.5, 0.5, 0.0], [0.5, 0.5, 0.0]])
    mean = float(bound.expected(even))
    found = float(bound(torch.tensor(2.0), weights))
    assert found == pytest.approx(expected(2.0, amount, mean), rel=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shape": "square"}, "shape='square' is unknown"),
        ({"combine": "divide"}, "combine='divide' is unknown"),
        ({"shape": "relu"}, "shape='relu' is about a target; pass target= in parameters"),
        ({"target": 0.0}, "target=0.0 must be above 0"),
        ({"combine": "multiply", "shape": "relu", "target": 1.0}, "takes the relative cost as it is"),
    ],
)
def test_a_penalty_that_cannot_be_meant_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        nas.Penalty(nas.parameters_of(small()), **options)


def test_a_cost_of_another_space_is_refused() -> None:
    cost = nas.parameters_of(small(Choosy))
    other = nas.Cost.from_table(small(), {"inner": {"tanh": 1.0}})
    rows = {"layer": ("large", "small")}
    ExpectedCost(cost, rows)
    with pytest.raises(ConfigError, match=r"the cost speaks of \['inner'\], which the space does not have"):
        ExpectedCost(other, rows)
