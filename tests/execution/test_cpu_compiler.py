"""What is compiled for CPUs in another way than torch does: the same numbers, and no booleans that are kept."""

import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from treadle.execution import Compile
from treadle.execution.cpu_compiler import Decompositions, _table, pool, pool_backward

aten = torch.ops.aten
WINDOWS = [(2, 2), (2, 3), (3, 3), (1, 4), (2,)]
PLAIN: dict[str, Any] = {"padding": [0, 0], "dilation": [1, 1], "ceil_mode": False}
OTHER: dict[str, dict[str, Any]] = {
    "overlapping": {"stride": [1, 1]},
    "padded": {"padding": [1, 1]},
    "dilated": {"dilation": [2, 2]},
    "rounded up": {"ceil_mode": True},
}


def images(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return images of few different values, so that most windows have more than one that is the largest, and NaN."""
    made = torch.randint(0, 4, shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    made.view(-1)[7] = torch.nan
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 8, 8), (3, 9, 7), (1, 2, 10, 13)], ids=str)
def test_windows_side_by_side_give_what_torch_gives(
    shape: tuple[int, ...], window: tuple[int, ...], dtype: torch.dtype
) -> None:
    inputs = images(*shape, dtype=dtype)
    values, places = aten.max_pool2d_with_indices(inputs, window)
    gradient = torch.randn(values.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    expected = aten.max_pool2d_with_indices_backward(gradient, inputs, window, window, **PLAIN, indices=places)
    own_values, own_places = pool(inputs, window)
    torch.testing.assert_close(own_values, values, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(own_places, places)
    own = pool_backward(gradient, inputs, window, window, **PLAIN, indices=places)
    assert own.dtype == dtype
    assert torch.equal(own, expected)


@pytest.mark.parametrize("kind", OTHER)
def test_other_windows_are_left_to_torch(kind: str) -> None:
    inputs, settings = images(1, 2, 8, 8), {"stride": [2, 2], **PLAIN, **OTHER[kind]}
    values, places = aten.max_pool2d_with_indices(inputs, [2, 2], **settings)
    assert pool_backward(values, inputs, [2, 2], **settings, indices=places) is NotImplemented


def test_caches_of_compiled_code_know_the_table_of_operations_by_what_it_is_made_from() -> None:
    key = pickle.dumps(_table())
    assert pickle.dumps(_table()) == key
    again = pickle.loads(key)  # noqa: S301 - made in the line above
    assert type(again) is Decompositions
    assert again[aten.max_pool2d_with_indices.default] is pool
    assert again.keys() == _table().keys()


class Pooled(nn.Module):
    """A convolution, and pooling of both kinds of windows."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 16, 3, padding=1)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return one number for each image."""
        kept = functional.relu(self.convolution(inputs))
        apart = functional.max_pool2d(kept, 2)
        over, _ = functional.max_pool2d(kept, 3, stride=2, padding=1, return_indices=True)
        return apart.square().flatten(1).sum(1) + over.square().flatten(1).sum(1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_steps_have_the_gradients_of_ordinary_ones_and_keep_no_booleans() -> None:
    torch.manual_seed(0)
    model, inputs = Pooled(), torch.randn(3, 1, 9, 9)
    model(inputs).sum().backward()
    assert model.convolution.weight.grad is not None
    expected = model.convolution.weight.grad.clone()
    model.zero_grad()
    kept: list[torch.dtype] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.dtype)
        return tensor

    compiled = Compile().apply(lambda batch: model(batch).sum(), model)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        compiled(inputs).backward()
    torch.testing.assert_close(model.convolution.weight.grad, expected)
    assert torch.int8 in kept
    assert torch.bool not in kept
