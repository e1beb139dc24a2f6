"""Reading a model as a space: depth, cells, arguments, and architectures of them."""

import json
import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from treadle import nas
from treadle.errors import ConfigError


def block(label: str | None = None) -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), nas.LayerChoice([nn.ReLU(), nn.Tanh()], label=label))


class Deep(nn.Module):
    """Blocks, as many as are to be decided."""

    def __init__(self, depth: Any = (1, 3), inner: str | None = None) -> None:
        super().__init__()
        self.blocks = nas.Repeat(block(inner), depth)

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.blocks(inputs)
        return output


def test_a_block_is_repeated_as_often_as_was_decided() -> None:
    torch.manual_seed(0)
    model, inputs = Deep((0, 3)), torch.randn(3, 2)
    network: Any = nas.freeze(model, {"blocks": 2, "blocks.0.1": 0, "blocks.1.1": 1})
    assert type(network.blocks) is nn.Sequential
    first, second = model.blocks._modules["0"], model.blocks._modules["1"]
    assert torch.equal(network(inputs), torch.tanh(second[0](torch.relu(first[0](inputs)))))
    assert torch.equal(nas.freeze(model, {"blocks": 0})(inputs), inputs)
    assert set(network.state_dict()) <= set(model.state_dict())


def test_unlabelled_choices_in_copies_are_decided_apart_and_only_where_the_block_is_there() -> None:
    space = nas.Space(Deep())
    assert list(space.decisions) == ["blocks", "blocks.0.1", "blocks.1.1", "blocks.2.1"]
    # 2 + 4 + 8 networks of depth 1, 2 and 3.
    assert space.size() == len(list(space.enumerate())) == 14
    assert space.default() == {"blocks": 3, "blocks.0.1": 0, "blocks.1.1": 0, "blocks.2.1": 0}


def test_labelled_choices_in_copies_are_decided_together() -> None:
    assert nas.size(Deep(inner="activation")) == 3 * 2
    assert nas.size(nas.Repeat(lambda number: block(f"activation{number}"), (1, 3), label="depth")) == 14


def test_a_depth_may_be_an_expression_of_several_decisions() -> None:
    stages, each = nas.ValueChoice([1, 2], label="stages"), nas.ValueChoice([0, 2], label="each")
    space = nas.Space(Deep(stages * each))
    # Depths 0, 2, 0 and 4: 1 + 4 + 1 + 16 networks.
    assert space.size() == len(list(space.enumerate())) == 22
    assert len(nas.freeze(Deep(stages * each), space.sample(3)).blocks) in (0, 2, 4)


@pytest.mark.parametrize(
    ("depth", "message"),
    [((3, 1), "is empty; give the smaller one first"), ((0, 0), "one at least 1"), ((-1, 2), "whole numbers from 0")],
)
def test_depths_that_cannot_be_meant_are_refused(depth: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Deep(depth)


class Celled(nn.Module):
    """Two cells that share their decisions."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        candidates = {"linear": nn.Linear(2, 2), "tanh": lambda node, slot, place: nn.Tanh()}
        arguments: dict[str, Any] = {"num_nodes": 2, "num_ops_per_node": 2, "num_predecessors": 2, "label": "cell"}
        self.first = nas.Cell(candidates, **(arguments | options))
        self.second = nas.Cell(candidates, **(arguments | options))

    def forward(self, inputs: Tensor) -> Tensor:
        first = self.first([inputs, inputs])
        output: Tensor = self.second([first[:, :2], first[:, 2:4]])
        return output


def test_a_cell_has_an_operation_and_a_state_for_every_slot() -> None:
    space = nas.Space(Celled())
    assert {label: decision.count for label, decision in space.decisions.items()} == {
        "cell/op_2_0": 2, "cell/input_2_0": 2, "cell/op_2_1": 2, "cell/input_2_1": 2,
        "cell/op_3_0": 2, "cell/input_3_0": 3, "cell/op_3_1": 2, "cell/input_3_1": 3,
    }  # fmt: skip
    assert space.size() == 4**2 * 6**2


def test_a_frozen_cell_does_what_the_cell_does_on_that_path() -> None:
    torch.manual_seed(0)
    model, inputs = Celled(), torch.randn(5, 2)
    for seed in range(10):
        architecture = nas.sample(model, seed)
        nas.attach(model, nas.Fixed(architecture))
        assert torch.equal(nas.freeze(model, architecture)(inputs), model(inputs))


def test_equal_operations_of_a_node_have_weights_of_their_own_when_frozen() -> None:
    architecture = nas.Space(Celled()).default() | {"cell/input_2_1": [0]}
    network: Any = nas.freeze(Celled(), architecture)
    one, other = network.first.nodes[0]
    assert torch.equal(one.weight, other.weight)
    assert one.weight.data_ptr() != other.weight.data_ptr()


def test_loose_ends_are_the_nodes_that_nobody_reads() -> None:
    model = Celled(merge_op="loose_end").first
    inputs = torch.randn(5, 2)
    unread = {"cell/input_3_0": [0], "cell/input_3_1": [1]}
    read = {"cell/input_3_0": [2], "cell/input_3_1": [1]}
    default = nas.Space(model).default()
    assert nas.freeze(model, default | unread)([inputs, inputs]).shape == (5, 4)
    assert nas.freeze(model, default | read)([inputs, inputs]).shape == (5, 2)


def test_a_choice_inside_of_a_cells_operation_exists_where_the_operation_is_taken() -> None:
    inner = nas.LayerChoice([nn.Tanh(), nn.ReLU()], label="inner")
    cell = nas.Cell({"inner": inner, "none": nn.Identity()}, num_nodes=1, num_ops_per_node=2, label="cell")
    space = nas.Space(cell)
    # Four pairs of operations; only with two identities there is nothing more to decide.
    assert space.size() == 3 * 2 + 1
    assert "inner" not in space.complete({label: space.decisions[label].default for label in space.decisions} | {
        "cell/op_1_0": "none", "cell/op_1_1": "none"
    })  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [({"num_nodes": 0}, "it needs an operation, a node"), ({"merge_op": "last"}, "merge_op='last' is unknown")],
)
def test_cells_that_cannot_be_meant_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Celled(**options)


def test_a_cell_says_how_many_inputs_it_needs() -> None:
    with pytest.raises(ConfigError, match="cell has 2 inputs and was called with 1"):
        Celled().first(torch.zeros(1, 2))


def test_the_cell_of_nas_bench_201_has_a_choice_for_every_pair_of_states() -> None:
    makers = {"linear": nn.Linear, "none": lambda one, other: nn.Identity()}
    cell = nas.NasBench201Cell(makers, 3, 3, num_tensors=4, label="cell")
    assert list(nas.Space(cell).decisions) == [f"cell/{pair}" for pair in ["1_0", "2_0", "2_1", "3_0", "3_1", "3_2"]]
    assert nas.size(cell) == 2**6
    network = nas.freeze(cell, dict.fromkeys(nas.Space(cell).decisions, "none"))
    # States: x, x, x + x, x + x + 2x.
    assert torch.equal(network(torch.ones(1, 3)), torch.full((1, 3), 4.0))


# Architectures ------------------------------------------------------------------------------------------------


def test_architectures_are_json_and_the_same_after_a_round_trip() -> None:
    model = Celled()
    architecture = nas.sample(model, 1)
    again = json.loads(json.dumps(architecture))
    assert nas.key_of(again) == nas.key_of(architecture)
    assert nas.Space(model).complete(again) == architecture


def test_export_6_every_missing_and_invalid_key_is_listed_and_unknown_ones_warn() -> None:
    model = Deep()
    with pytest.raises(ConfigError) as raised:
        nas.freeze(model, {"blocks": 1.5, "blocks.0.1": 9})
    assert "'blocks' is 1.5, not one of [1, 2, 3]" in str(raised.value)
    with pytest.raises(ConfigError) as raised:
        nas.freeze(model, {"blocks": 2, "blocks.0.1": 9})
    assert "'blocks.0.1' is 9, not one of [0, 1]; 'blocks.1.1' is missing" in str(raised.value)
    with pytest.warns(UserWarning, match=r"the architecture has 'block', which the space does not know; did you mean"):
        nas.freeze(model, {"blocks": 1, "blocks.0.1": 0, "block": 1})


def test_a_known_decision_that_does_not_exist_in_the_architecture_is_no_news() -> None:
    nas.freeze(Deep(), {"blocks": 1, "blocks.0.1": 0, "blocks.2.1": 1})


def test_sampling_follows_the_seed() -> None:
    model = Celled()
    assert nas.sample(model, 4) == nas.sample(model, 4)
    assert len({nas.key_of(nas.sample(model, seed)) for seed in range(20)}) > 15


def test_children_have_their_parents_values_and_only_what_exists() -> None:
    space, chance = nas.Space(Deep()), random.Random(0)
    one, other = {"blocks": 1, "blocks.0.1": 0}, {"blocks": 3, "blocks.0.1": 1, "blocks.1.1": 1, "blocks.2.1": 1}
    for _ in range(30):
        child = space.crossed(one, other, chance)
        assert space.complete(child) == child
        assert child["blocks"] in (1, 3)
        mutant = space.mutated(other, chance, 0.5)
        assert space.complete(mutant) == mutant
    assert space.mutated(one, chance, 0.0) == one


def test_a_space_too_entangled_to_be_counted_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.nas.space.model_space.MOST_VISITS", 1000)

    class Many(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.values = [nas.ValueChoice(range(10), label=f"v{number}") for number in range(9)]
            self.rule = nas.Constraint(sum(self.values[1:], self.values[0]) > 3)

    with pytest.raises(ConfigError, match="the space cannot be counted: 9 decisions, 'v0' among them"):
        nas.size(Many())


# Freezing -----------------------------------------------------------------------------------------------------


def test_export_5_a_frozen_network_shares_nothing_with_the_space() -> None:
    model = Deep()
    network: Any = nas.freeze(model, nas.Space(model).default())
    own = {parameter.data_ptr() for parameter in model.parameters()}
    assert not own & {parameter.data_ptr() for parameter in network.parameters()}


def test_tied_weights_stay_tied_and_modules_used_twice_stay_one() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.choice = nas.LayerChoice([nn.Linear(2, 2), nn.Identity()], label="op")
            self.again = self.choice
            self.head = nn.Linear(2, 2)
            self.head.weight = self.choice[0].weight

    network: Any = nas.freeze(Tied(), {"op": 0})
    assert network.choice is network.again
    assert network.head.weight is network.choice.weight


def test_freezing_draws_no_random_number_and_keeps_modes_and_types() -> None:
    model = nn.Sequential(nas.Built(nn.Linear, 2, nas.ValueChoice([2, 4], label="width")), nn.Dropout()).double().eval()
    before = torch.get_rng_state()
    network: Any = nas.freeze(model, {"width": 4})
    assert torch.equal(before, torch.get_rng_state())
    assert network[0].weight.dtype == torch.float64
    assert not any(module.training for module in network.modules())
