"""Products with the graph of users and items."""

import copy

import pytest
import torch
from torch import Tensor

from tests.guards.no_sync import no_sync
from tests.recsys.models.tiny_ratings import build
from treadle.recsys.models.constants import Constants
from treadle.recsys.models.graph import Graph

USERS, ITEMS = 5, 6


def pairs() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    keys = torch.randperm(USERS * ITEMS, generator=generator)[:12].sort().values
    return keys // ITEMS, keys % ITEMS


def graph(**settings: bool) -> Graph:
    return Graph(*pairs(), USERS, ITEMS, **settings)


def dense(normalised: bool = True) -> Tensor:
    users, items = pairs()
    matrix = torch.zeros(USERS + ITEMS, USERS + ITEMS, dtype=torch.float64)
    matrix[users, items + USERS] = matrix[items + USERS, users] = 1.0
    scale = matrix.sum(dim=1).clamp(min=1).rsqrt()
    return scale.unsqueeze(1) * matrix * scale if normalised else matrix


def features(dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(USERS + ITEMS, 4, generator=generator, dtype=dtype).requires_grad_()


@pytest.mark.parametrize("normalised", [True, False])
def test_a_product_is_that_of_the_dense_matrix(normalised: bool) -> None:
    given = features()
    torch.testing.assert_close(graph(normalised=normalised)(given), dense(normalised) @ given, rtol=1e-6, atol=1e-6)


def test_gradients_of_products_are_right_once_and_twice() -> None:
    own, given = graph(), features()
    assert torch.autograd.gradcheck(own, given)
    assert torch.autograd.gradcheck(lambda values: own.mean_of_powers(values, 3), given)
    assert torch.autograd.gradgradcheck(lambda values: own.mean_of_powers(values, 2).square(), given)


@pytest.mark.parametrize("layers", [0, 1, 2, 4])
def test_the_mean_of_powers_is_that_of_the_dense_matrix(layers: int) -> None:
    given = features()
    powers = [torch.linalg.matrix_power(dense(), power) @ given for power in range(layers + 1)]
    expected = torch.stack(powers).mean(dim=0)
    torch.testing.assert_close(graph().mean_of_powers(given, layers), expected, rtol=1e-6, atol=1e-6)


def test_edges_with_other_weights_in_each_direction_have_the_right_gradient() -> None:
    own, given = graph(), features()
    weights = torch.rand(2 * own.n_pairs, dtype=torch.float64)
    back = own.opposite_edges()
    rows = torch.repeat_interleave(torch.arange(own.n_nodes), own.starts.diff())
    assert torch.equal(rows[back], own.neighbours.long())
    assert torch.equal(own.neighbours[back].long(), rows)
    assert torch.autograd.gradcheck(lambda values: own(values, weights, weights[back]), given)


def test_weights_of_a_part_of_the_graph_go_by_the_degrees_in_that_part() -> None:
    own = graph()
    kept = torch.tensor([1.0, 0.0] * 6)
    users, items = pairs()
    weights = own.pair_weights(kept)
    for place in range(12):
        user_degree = kept[users == users[place]].sum()
        item_degree = kept[items == items[place]].sum()
        expected = kept[place] / (user_degree.clamp(min=1) * item_degree.clamp(min=1)).sqrt()
        assert weights[place].item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_products_stay_in_float32_under_autocast_forwards_and_backwards(dtype: torch.dtype) -> None:
    own, given = graph(), features(torch.float32)
    exact = own.mean_of_powers(given, 3)
    with torch.autocast("cpu", dtype):
        found = own.mean_of_powers(given, 3)
        single = own(given)
    assert found.dtype == single.dtype == torch.float32
    assert torch.equal(found, exact)
    (found.sum() + single.sum()).backward()
    assert given.grad is not None
    assert given.grad.dtype == torch.float32


def test_features_of_half_precision_have_gradients_of_half_precision() -> None:
    given = features(torch.float32).detach().bfloat16().requires_grad_()
    product = graph()(given)
    assert product.dtype == torch.float32
    product.sum().backward()
    assert given.grad is not None
    assert given.grad.dtype == torch.bfloat16


def test_a_product_never_reads_the_device() -> None:
    own, given = graph(), features(torch.float32)
    with no_sync():
        own.mean_of_powers(own(given), 2).sum().backward()


def test_a_graph_is_no_part_of_the_state_and_goes_where_its_model_goes() -> None:
    model = build("LightGCN").model
    assert list(model.state_dict()) == ["user_embedding.weight", "item_embedding.weight"]
    assert list(model.buffers()) == []
    model.double()
    assert model.graph.weights.dtype == torch.float64
    assert model.graph.neighbours.dtype == torch.int32
    again = copy.deepcopy(model)
    assert again.graph.weights is not model.graph.weights
    assert again.graph.n_nodes == model.graph.n_nodes
    assert model.to("meta").graph.weights.is_meta


def test_constants_are_read_by_name_and_missed_by_name() -> None:
    held = Constants(first=torch.tensor([1]))
    held.hold(second=torch.tensor([2, 3]))
    assert held.first.tolist() + held.second.tolist() == [1, 2, 3]
    assert repr(held) == "Constants(first: (1,), second: (2,))"
    with pytest.raises(AttributeError, match="third"):
        _ = held.third


def test_nodes_are_users_and_then_items() -> None:
    own = graph()
    assert own.nodes(torch.tensor([1]), torch.tensor([2]), torch.tensor([[0, 3]])).tolist() == [1, 7, 5, 8]
    users, items = own.split(torch.arange(11))
    assert users.tolist() == [0, 1, 2, 3, 4]
    assert items.tolist() == [5, 6, 7, 8, 9, 10]


def test_a_graph_without_edges_has_products_of_zero() -> None:
    nothing = torch.empty(0, dtype=torch.int64)
    given = torch.randn(5, 2, requires_grad=True)
    empty = Graph(nothing, nothing, 2, 3)
    assert not empty(given).any()
    torch.testing.assert_close(empty.mean_of_powers(given, 1), given / 2)
