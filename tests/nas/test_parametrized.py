"""Modules whose arguments are to be decided."""

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from treadle import nas
from treadle.errors import ConfigError


def width(label: str = "width") -> nas.ValueChoice:
    return nas.ValueChoice([2, 4, 6], label=label, default=4)


class Convolutions(nn.Module):
    """Widths and kernels of a small network."""

    def __init__(self) -> None:
        super().__init__()
        channels, kernel = width(), nas.ValueChoice([1, 3, 5], label="kernel")
        self.first = nas.Built(nn.Conv2d, 3, channels, kernel, padding=kernel // 2)
        self.norm = nas.Built(nn.BatchNorm2d, channels)
        self.depthwise = nas.Built(nn.Conv2d, channels, channels, 3, padding=1, groups=channels, bias=False)
        self.last = nas.Built(nn.Conv2d, channels, 5, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.last(self.depthwise(self.norm(self.first(inputs)).relu()))
        return output


def every(model: nn.Module) -> list[dict[str, Any]]:
    return list(nas.enumerate(model))


def test_a_space_of_widths_and_kernels_forwards_with_the_defaults() -> None:
    model = Convolutions()
    assert nas.Space(model).default() == {"width": 4, "kernel": 1}
    assert model(torch.zeros(2, 3, 6, 6)).shape == (2, 5, 6, 6)
    assert model.first.shared.weight.shape == (6, 3, 5, 5)


@pytest.mark.parametrize("training", [True, False])
def test_a_frozen_module_has_its_part_of_the_weights_and_does_the_same(training: bool) -> None:
    torch.manual_seed(0)
    model = Convolutions().train(training)
    for buffer in (model.norm.shared.running_mean, model.norm.shared.running_var):
        buffer.uniform_(0.5, 1.5)
    inputs = torch.randn(4, 3, 6, 6)
    for architecture in every(model):
        network: Any = nas.freeze(model, architecture)
        assert (network.first.out_channels, network.first.kernel_size[0]) == tuple(architecture.values())
        assert type(network.norm) is nn.BatchNorm2d
        nas.attach(model, nas.Fixed(architecture))
        torch.testing.assert_close(network(inputs), model(inputs), rtol=1e-5, atol=1e-6)


def test_the_statistics_of_the_channels_in_use_move_as_those_of_a_plain_batch_norm() -> None:
    built = nas.Built(nn.BatchNorm1d, width())
    plain = nn.BatchNorm1d(4)
    inputs = torch.randn(8, 4) + 3
    torch.testing.assert_close(built(inputs), plain(inputs))
    torch.testing.assert_close(built.shared.running_mean[:4], plain.running_mean)
    torch.testing.assert_close(built.shared.running_var[:4], plain.running_var)
    assert torch.equal(built.shared.running_mean[4:], torch.zeros(2))
    assert built.shared.num_batches_tracked == 1


def test_linear_layers_share_their_first_rows_and_columns() -> None:
    inner = width()
    model = nn.Sequential(nas.Built(nn.Linear, 3, inner), nn.ReLU(), nas.Built(nn.Linear, inner, 2, bias=False))
    inputs = torch.randn(4, 3)
    for architecture in every(model):
        nas.attach(model, nas.Fixed(architecture))
        assert torch.equal(nas.freeze(model, architecture)(inputs), model(inputs))


def test_any_other_class_is_built_once_for_each_combination() -> None:
    model = nn.Sequential(nas.Built(nn.LayerNorm, [nas.ValueChoice([2, 4], label="size")]))
    assert [tuple(one.normalized_shape) for one in model[0].children()] == [(2,), (4,)]
    assert nas.freeze(model, {"size": 4})[0].normalized_shape == (4,)
    strides = nas.Built(nn.Conv1d, 2, 2, 3, stride=nas.ValueChoice([1, 2], label="stride"))
    assert len(list(strides.children())) == 2


def test_labels_come_from_the_first_place_and_argument() -> None:
    channels = nas.ValueChoice([2, 4])
    model = nn.Sequential(nas.Built(nn.Linear, 3, channels), nas.Built(nn.Linear, channels, 2))
    assert list(nas.Space(model).decisions) == ["0.out_features"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nas.Built(nn.Linear, 2, 3), r"no argument is left open; use Linear\(...\) itself"),
        (lambda: nas.Built(nn.Linear, 2, 3, outt=width()), "an unexpected keyword argument 'outt'"),
        (lambda: nas.Built(nn.LayerNorm, nas.ValueChoice(range(1, 70))), "have 69 combinations, each a module"),
        (lambda: nas.Built(nn.Sequential, width()), "args has no name of its own"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def open_to_more(function: Any) -> Any:
    @functools.wraps(function)
    def wrapped(self: Any, *args: Any, gain: float = 1.0, **kwargs: Any) -> None:
        function(self, *args, **kwargs)
        self.gain = gain

    return wrapped


class Scaled(nn.Module):
    """Takes one argument more than its constructor says."""

    @open_to_more
    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width


def test_a_wrapped_constructor_may_take_more_than_what_it_wraps() -> None:
    built = nas.Built(Scaled, width=nas.ValueChoice([2, 4], label="width"), gain=3.0)
    assert built.arguments["gain"] == 3.0
    assert nas.freeze(nn.Sequential(built), {"width": 4})[0].gain == 3.0
