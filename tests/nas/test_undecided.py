"""A value that is still open is never taken for its default where a model is built."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from treadle import nas
from treadle.errors import ConfigError


def width() -> nas.ValueChoice:
    return nas.ValueChoice([8, 16, 32], label="width")


LAYERS = {
    "nn.Linear": lambda size: nn.Linear(8, size),
    "nn.BatchNorm1d": nn.BatchNorm1d,
    "nn.Embedding": lambda size: nn.Embedding(size, 4),
    "nn.Conv2d": lambda size: nn.Conv2d(3, size, 3),
    "nn.LayerNorm": nn.LayerNorm,
    "nn.GroupNorm": lambda size: nn.GroupNorm(2, size),
    "nn.MultiheadAttention": lambda size: nn.MultiheadAttention(size, 2),
    "nn.Dropout": lambda size: nn.Dropout(size / 100),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_of_torch_that_is_given_an_open_value_says_what_to_write(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        LAYERS[name](width())
    assert str(caught.value).startswith(
        f"ValueChoice([8, 16, 32], label='width') is not decided yet, and {name} cannot be made of it; "
        f"write nas.Built({name}, ...) with the same arguments"
    )


@pytest.mark.parametrize(
    "use",
    [
        lambda size: list(range(size)),
        torch.zeros,
        lambda size: torch.zeros(3, size),
        lambda size: torch.ones(4).view(size, 1),
        lambda size: torch.ones(4) * size,
        int,
        float,
        lambda size: [None][size],
        list,
        lambda size: nn.Parameter(torch.empty(size * 2)),
        nas.value_of,
    ],
)
def test_the_value_cannot_be_read_before_a_model_has_it(use: Any) -> None:
    with pytest.raises(ConfigError, match=r"is not decided yet, and its value is asked for where nothing runs forward"):
        use(width())


def test_a_constructor_of_ones_own_is_named() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Identity() for _ in range(width()))

    with pytest.raises(
        ConfigError, match=r"its value is asked for in .*Net\.__init__; .*nas\.Repeat for a number of blo"
    ):
        Net()


def test_a_layer_is_not_made_of_a_value_that_another_model_has_already() -> None:
    size = width()
    nas.Space(nn.Sequential(nas.Built(nn.Linear, 8, size)))
    with pytest.raises(ConfigError, match=r"nn\.Linear cannot be made of it"):
        nn.Linear(8, size)  # type: ignore[arg-type]


class Reading(nn.Module):
    """Uses its values in a forward in every way that there is."""

    def __init__(self) -> None:
        super().__init__()
        self.size = nas.ValueChoice([2, 3], label="size")
        self.slope = nas.ValueChoice([0.5, 0.25], label="slope")
        self.shape = nas.ValueChoice([(1, 2), (2, 1)], label="shape")

    def forward(self, inputs: Tensor) -> Tensor:
        kept = F.leaky_relu(inputs[:, : self.size], float(self.slope))
        rows, columns = self.shape
        ones = torch.ones(self.size, rows * columns)  # type: ignore[call-overload]
        wide = ones.sum().expand(self.size, nas.value_of(self.size)) / int(self.size)
        return kept.sum() + wide.sum() + sum(range(self.size))


def by_hand(size: int, slope: float) -> float:
    # Two rows of -1, of which `size` are kept; `size` * 2 ones, whose sum stands in a square of `size`.
    return -2 * size * slope + size * 2 * size + sum(range(size))


def test_in_a_forward_the_value_in_force_is_used_in_every_way() -> None:
    model, inputs = Reading(), -torch.ones(2, 4)
    assert model(inputs) == by_hand(2, 0.5)
    assert model.forward(inputs) == by_hand(2, 0.5)
    nas.attach(model, nas.Fixed({"size": 3, "slope": 0.25, "shape": [2, 1]}))
    assert model(inputs) == by_hand(3, 0.25)
    frozen = nas.freeze(Reading(), {"size": 3, "slope": 0.5, "shape": [2, 1]})
    assert frozen(inputs) == by_hand(3, 0.5)


def test_built_layers_are_searched_where_plain_ones_are_refused() -> None:
    model = nn.Sequential(nas.Built(nn.Linear, 4, width()), nas.Built(nn.BatchNorm1d, width()))
    assert nas.size(model) == 3
    widths = {tuple(nas.freeze(model, one)(torch.zeros(2, 4)).shape) for one in nas.enumerate(model)}
    assert widths == {(2, 8), (2, 16), (2, 32)}


def test_a_constraint_on_a_decision_that_is_not_there_is_refused() -> None:
    model: Any = nn.Sequential(nas.Built(nn.Linear, 4, width()))
    model.rule = nas.Constraint(lambda one: one["widht"] < 20, labels=["widht"])
    with pytest.raises(ConfigError, match=r"looks at 'widht', which the space does not decide; did you mean 'width'\?"):
        nas.Space(model)
