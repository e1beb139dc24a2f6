"""Where the state of an optimizer is kept when its weights are elsewhere; `meta` stands for a GPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import ASGD, SGD, Adagrad, Adam, NAdam, Optimizer

from treadle.optim.fused import counters_to_device, give_momenta, state_to_weights

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


def trained_in_parts(make: Callable[[list[nn.Parameter]], Optimizer]) -> list[Tensor]:
    """Train two weights of which the second gets its first gradient in the third step."""
    weights = [nn.Parameter(torch.full((2,), 1.0)), nn.Parameter(torch.full((2,), 2.0))]
    optimizer = make(weights)
    for step in range(5):
        loss = weights[0].square().sum() + (weights[1].square().sum() if step >= 2 else 0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [weight.detach() for weight in weights]


@pytest.mark.parametrize("nesterov", [False, True])
def test_a_weight_that_gets_its_first_gradient_late_has_the_momentum_it_would_have(nesterov: bool) -> None:
    options: dict[str, Any] = {"lr": 0.125, "momentum": 0.5, "nesterov": nesterov}

    def fused(weights: list[nn.Parameter]) -> Optimizer:
        optimizer = SGD(weights, fused=True, **options)
        optimizer.register_step_pre_hook(give_momenta)
        return optimizer

    found = trained_in_parts(fused)
    expected = trained_in_parts(lambda weights: SGD(weights, foreach=False, **options))
    assert all(map(torch.equal, found, expected))


def test_torch_alone_does_not_take_such_a_weight() -> None:
    with pytest.raises(TypeError, match="NoneType"):
        trained_in_parts(lambda weights: SGD(weights, lr=0.125, momentum=0.5, fused=True))
