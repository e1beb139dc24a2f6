import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from treadle.callbacks import ModelEma
from treadle.errors import ConfigError


class Everything(nn.Module):
    """A weight used twice, a float buffer, a counter, a mask with infinities and a buffer that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(1, 1, bias=False)
        self.second = nn.Linear(1, 1, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("mean", torch.tensor([0.0]))
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("mask", torch.tensor([0.0, -math.inf]))
        self.register_buffer("cache", torch.tensor([0.0]), persistent=False)


def fill(model: Everything, value: float) -> None:
    with torch.no_grad():
        model.first.weight.fill_(value)
        model.mean.fill_(value)
        model.count.fill_(int(value))
        model.cache.fill_(value)


def test_weights_and_float_buffers_are_averaged_and_all_else_is_copied() -> None:
    model = Everything()
    fill(model, 0)
    ema = ModelEma(model, decay=0.75)
    fill(model, 8)
    ema.update(model)
    assert ema.module.first.weight.item() == 2.0  # 0.75 * 0 + 0.25 * 8; moved once, although it is used twice
    assert ema.module.mean.item() == 2.0
    assert ema.module.count.item() == 8
    assert ema.module.cache.item() == 8.0
    assert ema.module.mask.tolist() == [0.0, -math.inf]
    ema.update(model)
    assert ema.module.first.weight.item() == 3.5


def test_set_takes_the_weights_as_they_are() -> None:
    model = Everything()
    ema = ModelEma(model)
    fill(model, 8)
    ema.set(model)
    assert ema.module.first.weight.item() == ema.module.mean.item() == 8.0
    assert ema.module.count.item() == 8


def test_the_average_is_that_of_a_loop_over_the_state_dict() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    ema = ModelEma(model, decay=0.9)
    expected = {name: value.clone() for name, value in model.state_dict().items()}
    for _ in range(5):
        model(torch.randn(8, 3))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
        ema.update(model)
        for name, value in model.state_dict().items():
            expected[name] = 0.9 * expected[name] + 0.1 * value if value.is_floating_point() else value.clone()
    for name, value in ema.module.state_dict().items():
        torch.testing.assert_close(value, expected[name])


def test_a_tensor_that_the_model_replaces_is_followed() -> None:
    model = Everything()
    fill(model, 0)
    ema = ModelEma(model, decay=0.5)
    ema.update(model)
    model.mean = torch.tensor([4.0])
    model.first.weight = nn.Parameter(torch.tensor([[4.0]]))
    ema.update(model)
    assert ema.module.mean.item() == ema.module.first.weight.item() == 2.0


def test_the_copy_is_apart_from_the_model_and_takes_no_gradient() -> None:
    model = nn.Linear(1, 1)
    ema = ModelEma(model)
    assert ema.module is not model
    assert not any(parameter.requires_grad for parameter in ema.parameters())
    assert model.weight.requires_grad
    assert not ema.module.training
    ema.update(model)
    assert sorted(ema.state_dict()) == ["module.bias", "module.weight"]
    assert torch.equal(ema(torch.ones(1, 1)), model(torch.ones(1, 1)))


def test_nothing_is_read_from_the_device_in_an_update() -> None:
    class NoReading(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            assert torch.Tag.data_dependent_output not in func.tags, func
            return func(*args, **(kwargs or {}))

    model = Everything()
    ema = ModelEma(model)
    with NoReading():
        ema.update(model)
        with pytest.raises(AssertionError, match="_local_scalar_dense"):
            model.mean.item()


def test_a_model_of_another_shape_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"ModelEma follows a model of another shape: \['bias'\] are not in both"):
        ModelEma(nn.Linear(1, 1)).update(nn.Linear(1, 1, bias=False))


@pytest.mark.parametrize("decay", [-0.1, 1.0, math.nan])
def test_a_decay_outside_its_range_is_refused(decay: float) -> None:
    with pytest.raises(ConfigError, match=f"ModelEma: decay={decay} must be at least 0 and below 1"):
        ModelEma(nn.Linear(1, 1), decay=decay)
