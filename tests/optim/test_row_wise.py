"""Optimizers of rows against a few lines of NumPy that keep all rows."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.guards.no_sync import no_sync
from treadle.errors import ConfigError
from treadle.optim.row_wise import LazyAdam, RowAdagrad

Matrix = np.ndarray[Any, Any]
BATCHES = [[1, 3, 3, 5], [5, 0], [3, 3, 3, 1], [2, 5]]
"""Rows of each batch; row 4 never comes, and some come several times."""


def gradients() -> list[Matrix]:
    generator = np.random.default_rng(0)
    return [generator.normal(size=(len(rows), 3)) for rows in BATCHES]


def table(*, double: bool = True) -> nn.Embedding:
    torch.manual_seed(0)
    return nn.Embedding(6, 3, sparse=True, dtype=torch.float64 if double else torch.float32)


def train(one: nn.Embedding, optimizer: Any, batches: slice = slice(None), together: bool = False) -> None:
    """Make updates whose gradients are known: those of inner products with them."""
    for rows, gradient in list(zip(BATCHES, gradients(), strict=True))[batches]:
        optimizer.zero_grad()
        (one(torch.tensor(rows)) * torch.from_numpy(gradient).to(one.weight.dtype)).sum().backward()
        assert one.weight.grad is not None
        if together:
            one.weight.grad = one.weight.grad.coalesce()
        optimizer.step()


def dense(rows: list[int], gradient: Matrix) -> Matrix:
    """Return the gradient of all rows."""
    made = np.zeros((6, 3))
    np.add.at(made, rows, gradient)
    return made


def lazy_adam(weights: Matrix) -> Matrix:
    mean, squares = np.zeros_like(weights), np.zeros_like(weights)
    for step, (rows, gradient) in enumerate(zip(BATCHES, gradients(), strict=True), start=1):
        g, there = dense(rows, gradient), np.isin(np.arange(6), rows)[:, None]
        mean = np.where(there, 0.9 * mean + 0.1 * g, mean)
        squares = np.where(there, 0.999 * squares + 0.001 * g**2, squares)
        moved = 0.05 * (mean / (1 - 0.9**step)) / (np.sqrt(squares / (1 - 0.999**step)) + 1e-8)
        weights = np.where(there, weights - moved, weights)
    return weights


def row_adagrad(weights: Matrix) -> Matrix:
    sums = np.zeros(6)
    for rows, gradient in zip(BATCHES, gradients(), strict=True):
        g = dense(rows, gradient)
        sums = sums + (g**2).mean(axis=1)
        weights = weights - 0.05 * g / (np.sqrt(sums) + 1e-10)[:, None]
    return weights


KINDS: dict[str, tuple[Any, Callable[[Matrix], Matrix]]] = {
    "lazy_adam": (LazyAdam, lazy_adam),
    "row_adagrad": (RowAdagrad, row_adagrad),
}
both = pytest.mark.parametrize("name", KINDS)


@both
@pytest.mark.parametrize("together", [False, True], ids=["as they came", "summed before"])
def test_rows_move_by_the_definition_and_others_stay_to_the_bit(name: str, together: bool) -> None:
    kind, reference = KINDS[name]
    one = table()
    before = one.weight.detach().numpy().copy()
    optimizer = kind([one.weight], lr=0.05)
    train(one, optimizer, together=together)
    np.testing.assert_allclose(one.weight.detach().numpy(), reference(before), rtol=1e-12, atol=1e-13)
    assert np.array_equal(one.weight.detach().numpy()[4], before[4])
    assert not any(value[4].any() for key, value in optimizer.state[one.weight].items() if key != "step")


def test_lazy_adam_is_torchs_sparse_adam() -> None:
    ours, theirs = table(double=False), table(double=False)
    train(ours, LazyAdam([ours.weight], lr=0.05))
    train(theirs, torch.optim.SparseAdam([theirs.weight], lr=0.05))
    torch.testing.assert_close(ours.weight, theirs.weight, rtol=1e-6, atol=1e-7)


@both
def test_a_run_that_is_cut_ends_in_the_same_bits(name: str) -> None:
    kind, _ = KINDS[name]
    whole, cut = table(), table()
    optimizer = kind([whole.weight], lr=0.05)
    train(whole, optimizer)
    first = kind([cut.weight], lr=0.05)
    train(cut, first, slice(0, 2))
    state = copy.deepcopy(first.state_dict())
    resumed = table()
    resumed.load_state_dict(cut.state_dict())
    second = kind([resumed.weight], lr=0.05)
    second.load_state_dict(state)
    train(resumed, second, slice(2, None))
    assert torch.equal(resumed.weight, whole.weight)


@pytest.mark.parametrize(("name", "plain"), [("lazy_adam", torch.optim.Adam), ("row_adagrad", torch.optim.Adagrad)])
def test_weights_with_dense_gradients_are_updated_as_by_the_plain_optimizer(name: str, plain: Any) -> None:
    given, made = torch.randn(4, 3), []
    for kind in (KINDS[name][0], plain):
        torch.manual_seed(1)
        layer = nn.Linear(3, 2)
        optimizer = kind(layer.parameters(), lr=0.05)
        for _ in range(3):
            optimizer.zero_grad()
            layer(given).square().sum().backward()
            optimizer.step()
        made.append(layer.weight.detach())
    torch.testing.assert_close(*made, rtol=1e-6, atol=1e-7)


@both
def test_a_table_whose_gradient_has_all_rows_is_refused_by_its_name(name: str) -> None:
    one = table()
    optimizer = KINDS[name][0]([one.weight], tables={one.weight: "items.weight of Shop"})
    one.weight.sum().backward()
    with pytest.raises(
        ConfigError, match=rf"{name} moves only the rows .* the gradient of items\.weight of Shop has all"
    ):
        optimizer.step()


@both
def test_a_step_never_reads_the_device(name: str) -> None:
    one = table(double=False)
    optimizer = KINDS[name][0]([one.weight])
    train(one, optimizer, slice(0, 1))
    rows, values = torch.tensor([[3, 1, 3]]), torch.ones(3, 3)
    one.weight.grad = torch.sparse_coo_tensor(rows, values, (6, 3), check_invariants=False)
    with no_sync():
        optimizer.step()
