"""Where the state of an optimizer is kept when its weights are elsewhere; `meta` stands for a GPU."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import ASGD, Adagrad, Adam, NAdam, Optimizer

from treadle.execution.fused import counters_to_device, state_to_weights

HOST, DEVICE = torch.device("cpu"), torch.device("meta")


def moved_away(make: Any, **counters: torch.Tensor) -> tuple[Optimizer, dict[str, torch.Tensor]]:
    """Return an optimizer whose weight was moved after it was built, and its state of that weight."""
    before, weight = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2, device=DEVICE))
    optimizer: Optimizer = make([before])
    optimizer.param_groups[0]["params"] = [weight]
    optimizer.state[weight] = {**optimizer.state.pop(before, {}), **counters}
    return optimizer, optimizer.state[weight]


def places(state: dict[str, torch.Tensor]) -> dict[str, torch.device]:
    return {name: value.device for name, value in state.items()}


def number() -> torch.Tensor:
    return torch.tensor(3.0)


@pytest.mark.parametrize(("options", "place"), [({}, HOST), ({"capturable": True}, DEVICE), ({"fused": True}, DEVICE)])
def test_counters_are_with_the_weights_if_a_step_is_recorded_or_fused(
    options: dict[str, bool], place: torch.device
) -> None:
    optimizer, state = moved_away(lambda weights: Adam(weights, **options), step=number())
    counters_to_device(optimizer)
    assert places(state) == {"step": place}


@pytest.mark.parametrize(("capturable", "place"), [(False, HOST), (True, DEVICE)])
def test_the_product_that_nadam_keeps_is_where_its_counter_is(capturable: bool, place: torch.device) -> None:
    optimizer, state = moved_away(
        lambda weights: NAdam(weights, capturable=capturable), step=number(), mu_product=number()
    )
    counters_to_device(optimizer)
    assert places(state) == {"step": place, "mu_product": place}


@pytest.mark.parametrize("capturable", [False, True])
def test_asgd_has_its_counters_with_the_weights_whatever_is_chosen(capturable: bool) -> None:
    optimizer, state = moved_away(
        lambda weights: ASGD(weights, capturable=capturable), step=number(), eta=number(), mu=number()
    )
    counters_to_device(optimizer)
    assert places(state) == {"step": DEVICE, "eta": DEVICE, "mu": DEVICE}


def test_the_counter_of_adagrad_stays_on_the_host_and_its_sums_follow_the_weights() -> None:
    optimizer, state = moved_away(Adagrad)
    assert places(state) == {"step": HOST, "sum": HOST}
    counters_to_device(optimizer)
    state_to_weights(optimizer)
    assert places(state) == {"step": HOST, "sum": DEVICE}


def test_state_that_is_with_its_weights_is_left_as_it_is() -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = Adagrad([weight])
    before = optimizer.state[weight]["sum"]
    state_to_weights(optimizer)
    assert optimizer.state[weight]["sum"] is before
