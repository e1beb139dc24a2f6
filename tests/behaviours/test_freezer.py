"""Freezing a model and thawing it again between runs."""

from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from treadle.optim.freezing import ModelFreezer


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))


def test_d35_all_but_the_last_child_are_frozen_and_batch_norm_stays_trainable() -> None:
    model = network()
    ModelFreezer(model).freeze()
    assert [name for name, parameter in model.named_parameters() if parameter.requires_grad] == [
        "1.weight",
        "1.bias",
        "2.weight",
        "2.bias",
    ]


def test_d35_unfreezing_returns_the_parameters_that_train_from_now_on_by_group() -> None:
    model = network()
    freezer = ModelFreezer(model)
    freezer.freeze()
    thawed = freezer.unfreeze()
    returned = [parameter for group in thawed.values() for parameter in group["params"]]
    assert {id(parameter) for parameter in returned} == {id(parameter) for parameter in model[0].parameters()}
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_d35_frozen_weights_do_not_move_in_a_run_and_thawed_ones_do(make_trainer: Any, data: TensorDataset) -> None:
    model = network()
    trainer = make_trainer(model=model)
    freezer = ModelFreezer(model)
    freezer.freeze()
    frozen, free = model[0].weight.detach().clone(), model[2].weight.detach().clone()
    trainer.train(data, 1)
    assert torch.equal(model[0].weight, frozen)
    assert not torch.equal(model[2].weight, free)
    freezer.unfreeze()
    trainer.train(data, 1)
    assert not torch.equal(model[0].weight, frozen)
