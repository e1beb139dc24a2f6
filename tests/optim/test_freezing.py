"""`ModelFreezer`: what is frozen, what is not, and what comes back."""

from typing import Any

import pytest
import torch
from torch import nn

from treadle.errors import ConfigError
from treadle.optim.freezing import ModelFreezer
from treadle.optim.param_groups import parameter_groups


class Net(nn.Module):
    """Five children; batch norms at two depths."""

    def __init__(self) -> None:
        super().__init__()
        self.input = nn.Linear(2, 2)
        self.block_1 = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.ReLU())
        self.block_2 = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout()))
        self.output_1 = nn.Linear(2, 1)
        self.output_2 = nn.Linear(2, 1)


class Attentive(nn.Module):
    """Parameters owned by the model itself, and by a module that has children."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(2))
        self.attention = nn.MultiheadAttention(2, 1, dropout=0.5)
        self.head = nn.Linear(2, 1)


def trainable(model: nn.Module) -> list[str]:
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


def test_by_default_all_but_the_last_child_is_frozen_and_batch_norms_train() -> None:
    model = Net()
    ModelFreezer(model).freeze()
    assert trainable(model) == [
        "block_1.1.weight",
        "block_1.1.bias",
        "block_2.1.1.weight",
        "block_2.1.1.bias",
        "output_2.weight",
        "output_2.bias",
    ]
    assert all(module.training for module in model.modules())


def test_batch_norms_are_frozen_when_asked() -> None:
    model = Net()
    ModelFreezer(model, freeze_batch_norms=True).freeze()
    assert trainable(model) == ["output_2.weight", "output_2.bias"]


@pytest.mark.parametrize(
    ("from_index", "to_index", "frozen"),
    [(0, 2, {0, 1, 2}), (2, 0, {0, 1, 2}), (-2, -1, {3, 4}), (-1, -2, {3, 4}), (0, -1, {0, 1, 2, 3, 4}), (1, 1, {1})],
)
def test_both_ends_count_in_either_order_and_from_either_side(from_index: int, to_index: int, frozen: set[int]) -> None:
    freezer = ModelFreezer(Net(), freeze_batch_norms=True)
    freezer.freeze(from_index, to_index)
    groups = freezer.get_layer_groups()
    assert {group.layer_group_idx[0] for group in groups if group.is_frozen} == frozen
    layers = freezer.get_layers()
    with_parameters = [layer for layer in layers if list(layer.module.parameters())]
    assert {layer.layer_group_idx[0] for layer in with_parameters if layer.is_frozen} == frozen
    assert {layer.layer_group_idx[0] for layer in with_parameters if not layer.is_frozen} == set(range(5)) - frozen


def test_layers_are_the_modules_without_children_with_both_indices_of_their_group() -> None:
    model = Net()
    layers = ModelFreezer(model).get_layers()
    assert [layer.layer_group_idx for layer in layers] == [
        (0, -5),
        *[(1, -4)] * 3,
        *[(2, -3)] * 4,
        (3, -2),
        (4, -1),
    ]
    assert [layer.module for layer in layers] == [module for module in model.modules() if not list(module.children())]


def test_unfreezing_returns_what_became_trainable_for_each_group() -> None:
    model = Net()
    freezer = ModelFreezer(model, freeze_batch_norms=True)
    freezer.freeze()
    expected = {
        0: {"params": list(model.input.parameters())},
        1: {"params": list(model.block_1.parameters())},
        2: {"params": list(model.block_2.parameters())},
        3: {"params": list(model.output_1.parameters())},
    }
    assert freezer.unfreeze() == expected
    assert freezer.unfreeze() == {}
    assert freezer.get_trainable_parameters() == list(model.parameters())


def test_what_unfreezing_returns_can_be_added_to_the_optimizer() -> None:
    model = Net()
    freezer = ModelFreezer(model)
    freezer.freeze()
    optimizer = torch.optim.SGD(freezer.get_trainable_parameters(), lr=0.1)
    for group in freezer.unfreeze(-1, 2).values():
        optimizer.add_param_group({**group, "lr": 0.01})
    assert [len(group["params"]) for group in optimizer.param_groups] == [6, 4, 2]


def test_what_unfreezing_returns_can_join_groups_that_have_names() -> None:
    model = Net()
    freezer = ModelFreezer(model)
    freezer.freeze()
    optimizer = torch.optim.SGD(parameter_groups(model, {}, lr=0.1))
    optimizer.add_param_group(freezer.unfreeze(0, 0, with_names=True)[0])
    assert optimizer.param_groups[1]["param_names"] == ["input.weight", "input.bias"]


def test_modules_are_put_into_eval_mode_without_touching_batch_norms_left_out() -> None:
    model = Net()
    freezer = ModelFreezer(model)
    freezer.freeze(set_modules_as_eval=True)
    assert trainable(model)[-1] == "output_2.bias"
    assert not model.input.weight.requires_grad
    assert not model.block_2[1][2].training
    assert model.block_2[1][1].training
    assert model.output_2.training
    assert model.training
    freezer.unfreeze()
    assert all(module.training for module in model.modules())


def test_batch_norms_go_into_eval_mode_when_they_are_frozen_too() -> None:
    model = Net()
    ModelFreezer(model, freeze_batch_norms=True).freeze(set_modules_as_eval=True)
    assert not model.block_1[1].training


def test_unfreezing_without_the_mode_unfreezes_all_the_same() -> None:
    model = Net()
    freezer = ModelFreezer(model)
    freezer.freeze(set_modules_as_eval=True)
    assert len(freezer.unfreeze(set_modules_as_training=False)) == 4
    assert freezer.get_trainable_parameters() == list(model.parameters())
    assert not model.input.training


def test_parameters_that_no_leaf_owns_are_frozen_and_unfrozen_too() -> None:
    model = Attentive()
    freezer = ModelFreezer(model)
    freezer.freeze(set_modules_as_eval=True)
    assert trainable(model) == ["head.weight", "head.bias"]
    assert not model.attention.training  # or its dropout would go on
    assert [layer.is_frozen for layer in freezer.get_layers()] == [True, True, True, False]
    assert freezer.unfreeze() == {0: {"params": [model.token, *model.attention.parameters()]}}


def test_a_tied_parameter_belongs_to_the_first_group_that_holds_it() -> None:
    model = nn.Sequential(nn.Embedding(3, 2), nn.Linear(2, 2), nn.Linear(2, 3))
    model[2].weight = model[0].weight
    freezer = ModelFreezer(model)
    freezer.freeze(0, 0)
    assert not model[2].weight.requires_grad
    assert freezer.unfreeze(1, 2) == {}
    assert freezer.unfreeze(0, 0) == {0: {"params": [model[0].weight]}}


def test_building_a_freezer_leaves_what_was_frozen_before() -> None:
    model = Net()
    model.input.weight.requires_grad_(False)
    freezer = ModelFreezer(model)
    assert not model.input.weight.requires_grad
    assert not freezer.get_layer_groups()[0].is_frozen  # its bias trains
    assert freezer.unfreeze(0, 0) == {0: {"params": [model.input.weight]}}


def test_a_group_of_nothing_but_batch_norms_left_out_is_not_frozen() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2), nn.Linear(2, 1))
    freezer = ModelFreezer(model)
    freezer.freeze()
    assert [group.is_frozen for group in freezer.get_layer_groups()] == [False, True, False]


def test_integer_parameters_are_left_alone() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    model[0].scale = nn.Parameter(torch.ones(2, dtype=torch.int8), requires_grad=False)
    freezer = ModelFreezer(model)
    freezer.freeze()
    assert freezer.unfreeze() == {0: {"params": [model[0].weight, model[0].bias]}}


def test_frozen_parameters_do_not_move() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    ModelFreezer(model).freeze()
    before = [parameter.clone() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    moved = [not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True)]
    assert moved == [False, False, True, True]


@pytest.mark.parametrize("index", [5, -6])
def test_an_index_beyond_the_groups_is_refused(index: int) -> None:
    message = f"there is no layer group {index}: Net has 5, from 0 to 4, or -5 to -1 from the back"
    freezer = ModelFreezer(Net())
    change: Any
    for change in (freezer.freeze, freezer.unfreeze):
        with pytest.raises(ConfigError, match=message):
            change(0, index)


def test_a_model_with_one_child_has_nothing_but_the_last_group() -> None:
    freezer = ModelFreezer(nn.Sequential(nn.Linear(2, 1)))
    with pytest.raises(ConfigError, match="there is no layer group -2: Sequential has 1"):
        freezer.freeze()


def test_a_model_without_children_is_refused() -> None:
    with pytest.raises(ConfigError, match="Linear has no child modules, so it has no layer groups to freeze"):
        ModelFreezer(nn.Linear(2, 1))
