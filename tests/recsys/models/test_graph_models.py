"""LightGCN, NGCF, SpectralCF, GCMC and SGL against dense matrices."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.recsys.models.building import fill
from tests.recsys.models.tiny_ratings import Built, all_scores, build
from treadle.errors import ConfigError
from treadle.recsys import Interaction
from treadle.recsys.models.general_recommender.sgl import recognition_loss


def large(name: str, **settings: Any) -> Built:
    """Return a model with large weights, in evaluation: nothing is random."""
    built = build(name, **settings)
    fill(built.model)
    built.model.eval()
    return built


def own_embeddings(built: Built) -> Tensor:
    return torch.cat([built.model.user_embedding.weight, built.model.item_embedding.weight]).double()


def normalised(adjacency: Tensor) -> Tensor:
    scale = adjacency.sum(dim=1).clamp(min=1).rsqrt()
    return scale.unsqueeze(1) * adjacency * scale


def products(built: Built, embeddings: Tensor) -> Tensor:
    users = embeddings[: built.model.n_users]
    return users @ embeddings[built.model.n_users :].T


def assert_same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layers", [0, 1, 3])
def test_lightgcn_is_the_mean_of_its_layers(layers: int) -> None:
    built = large("LightGCN", n_layers=layers)
    graph, layer = normalised(built.adjacency()), own_embeddings(built)
    total = layer
    for _ in range(layers):
        layer = graph @ layer
        total = total + layer
    assert_same(all_scores(built), products(built, total / (layers + 1)))


def test_lightgcn_penalises_half_the_squares_of_embeddings_before_smoothing() -> None:
    built = large("LightGCN", reg_weight=0.3)
    batch = built.batch()
    own, scores = own_embeddings(built), all_scores(built).double()
    users, positives, negatives = (batch[name] for name in ("user_id", "item_id", "neg_item_id"))
    difference = scores[users, positives] - scores[users, negatives]
    squares = sum(own[nodes].square().sum() for nodes in (users, positives + 17, negatives + 17))
    expected = -functional.logsigmoid(difference).mean() + 0.3 * squares / (2 * len(batch))
    assert_same(built.model.calculate_loss(batch), expected)


def test_lightgcn_without_squares_penalises_norms() -> None:
    batch = build("LightGCN").batch()
    losses = [large("LightGCN", reg_weight=weight, require_pow=False).model.calculate_loss(batch) for weight in (0, 1)]
    own = own_embeddings(large("LightGCN"))
    norms = [own[nodes].norm() for nodes in (batch["user_id"], batch["item_id"] + 17, batch["neg_item_id"] + 17)]
    assert_same(losses[1] - losses[0], sum(norms) / len(batch))


def test_lightgcns_gradient_is_that_of_dense_matrices() -> None:
    built = large("LightGCN", n_layers=3)
    built.model.double()
    batch = built.batch()
    built.model.calculate_loss(batch).backward()
    own = own_embeddings(built).detach().requires_grad_()
    graph = normalised(built.adjacency())
    smooth = sum(torch.linalg.matrix_power(graph, power) @ own for power in range(4)) / 4
    users, items, others = (batch["user_id"], batch["item_id"] + 17, batch["neg_item_id"] + 17)
    scores = (smooth[users] * (smooth[items] - smooth[others])).sum(dim=1)
    penalty = sum(own[nodes].square().sum() for nodes in (users, items, others)) / (2 * len(batch))
    (1e-05 * penalty - functional.logsigmoid(scores).mean()).backward()
    found = torch.cat([built.model.user_embedding.weight.grad, built.model.item_embedding.weight.grad])
    assert own.grad is not None
    torch.testing.assert_close(found, own.grad, rtol=1e-5, atol=1e-7)


def test_ngcf_adds_what_a_node_has_in_common_with_its_neighbours() -> None:
    built = large("NGCF")
    graph, features = normalised(built.adjacency()), own_embeddings(built)
    layers = [features]
    for layer in built.model.GNNlayers:
        weights = [one.detach().double() for one in layer.parameters()]
        around = graph @ features
        both = (around + features) @ weights[0].T + weights[1] + (around * features) @ weights[2].T + weights[3]
        features = functional.normalize(functional.leaky_relu(both, 0.2), dim=1)
        layers.append(features)
    assert_same(all_scores(built), products(built, torch.cat(layers, dim=1)))


def test_ngcf_drops_edges_in_training_only_and_each_direction_by_itself() -> None:
    built = build("NGCF", node_dropout=0.5, message_dropout=0.0)
    built.model.train()
    first, second = built.model.embeddings(), built.model.embeddings()
    assert not torch.equal(first, second)
    built.model.eval()
    assert torch.equal(built.model.embeddings(), built.model.embeddings())


def test_spectralcf_filters_by_the_identity_and_the_laplacian() -> None:
    built = large("SpectralCF", n_layers=2)
    adjacency, features = built.adjacency(), own_embeddings(built)
    nodes = len(adjacency)
    laplacian = torch.eye(nodes, dtype=torch.float64) - adjacency / adjacency.sum(dim=1, keepdim=True).clamp(min=1)
    layers = [features]
    for one in built.model.filters:
        features = ((torch.eye(nodes, dtype=torch.float64) + laplacian) @ features @ one.double()).sigmoid()
        layers.append(features)
    assert_same(all_scores(built), products(built, torch.cat(layers, dim=1)))


def test_gcmc_compares_encoded_users_and_items_by_a_matrix_for_each_class() -> None:
    built = large("GCMC", num_basis_functions=3)
    model = built.model
    hidden = (normalised(built.adjacency()) @ model.message_weight.double()).relu()
    encoded = hidden @ model.dense.weight.double().T
    users, items = encoded[: model.n_users], encoded[model.n_users :]
    logits = []
    for kind in range(2):
        matrix = sum(model.basis_weight[b, kind] * model.basis[b] for b in range(3)).double()
        logits.append(users @ matrix @ items.T)
    expected = torch.stack(logits).softmax(dim=0)[1]
    assert_same(all_scores(built), expected)
    batch = built.batch()
    chosen = expected[batch["user_id"], batch["item_id"]].log().mean()
    other = (1 - expected[batch["user_id"], batch["neg_item_id"]]).log().mean()
    assert_same(model.calculate_loss(batch), -(chosen + other) / 2)


def test_gcmc_with_more_classes_scores_the_second() -> None:
    built = large("GCMC", class_num=3)
    pairs = Interaction({"user_id": torch.tensor([1, 2]), "item_id": torch.tensor([3, 4])})
    users, items = built.model.encode()
    chances = built.model(users[pairs["user_id"]], items[pairs["item_id"]]).softmax(dim=1)
    torch.testing.assert_close(built.model.predict(pairs), chances[:, 1])
    torch.testing.assert_close(all_scores(built)[[1, 2], [3, 4]], chances[:, 1], rtol=1e-4, atol=1e-5)


def test_gcmc_drops_all_messages_of_a_node_together() -> None:
    built = build("GCMC", dropout_prob=0.6)
    built.model.train()
    seen: list[Tensor] = []
    built.model.graph.register_forward_pre_hook(lambda module, given: seen.append(given[0].detach()))
    built.model.encode()
    zero = seen[0] == 0
    assert zero.all(dim=1).any()
    assert torch.equal(zero.all(dim=1), zero.any(dim=1))


@pytest.mark.parametrize(("setting", "value"), [("accum", "mean"), ("class_num", 1), ("dropout_prob", 1.5)])
def test_gcmc_says_which_setting_is_wrong(setting: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{setting}={value!r}"):
        build("GCMC", **{setting: value})


def view(built: Built, number: int, copy: int = 0) -> Tensor:
    """Return a thinned-out graph as a dense matrix."""
    graph = built.model.graph
    rows = torch.repeat_interleave(torch.arange(graph.n_nodes), graph.starts.diff())
    dense = torch.zeros(graph.n_nodes, graph.n_nodes, dtype=torch.float64)
    dense[rows, graph.neighbours.long()] = built.model.views.weights[number, copy].double()
    return dense


@pytest.mark.parametrize("kind", ["ED", "ND", "RW"])
def test_sgls_views_are_graphs_of_their_own_with_weights_by_their_own_degrees(kind: str) -> None:
    built = build("SGL", type=kind, drop_ratio=0.3)
    for number in range(2):
        dense = view(built, number)
        torch.testing.assert_close(dense, normalised((dense > 0).double()), rtol=1e-6, atol=1e-6)
        assert torch.equal(dense > 0, dense.T > 0)
        assert not ((dense > 0) & (built.adjacency() == 0)).any()
    assert not torch.equal(view(built, 0), view(built, 1))


def test_sgl_drops_a_share_of_the_edges() -> None:
    built = build("SGL", drop_ratio=0.25)
    edges = int(built.adjacency().sum()) // 2
    assert int((view(built, 0) > 0).sum()) // 2 == int(edges * 0.75)


def test_sgl_drops_nodes_with_all_their_edges() -> None:
    built = build("SGL", type="ND", drop_ratio=0.5)
    lost = (view(built, 0) > 0).sum(dim=1) == 0
    assert lost[:17].sum() >= 8
    assert lost[17:].sum() >= 6


def test_sgl_walks_on_other_edges_in_each_layer() -> None:
    built = build("SGL", type="RW", n_layers=3, drop_ratio=0.3)
    copies = built.model.views.weights[0]
    assert len(copies) == 3
    assert not torch.equal(copies[0], copies[1])
    own = own_embeddings(built)
    expected, layer = own, own
    for copy in range(3):
        layer = view(built, 1, copy) @ layer
        expected = expected + layer
    assert_same(built.model._view(own.float(), 1), expected / 4)


def test_sgls_views_depend_on_the_seed_and_the_number_of_the_epoch_alone() -> None:
    first, second = build("SGL"), build("SGL")
    begun = first.model.views.weights.clone()
    place = first.model.views.weights.data_ptr()
    for epoch in (1, 2, 3):
        first.model.start_epoch(epoch)
    second.model.start_epoch(3)
    assert torch.equal(first.model.views.weights, second.model.views.weights)
    assert not torch.equal(first.model.views.weights, begun)
    assert first.model.views.weights.data_ptr() == place, "a captured graph reads them where they were"
    assert not torch.equal(build("SGL", seed=1).model.views.weights, begun)


def test_sgl_adds_the_weighted_cross_entropy_of_knowing_nodes_again() -> None:
    built = large("SGL", ssl_weight=0.7, ssl_tau=0.2)
    batch = built.batch()
    plain = large("LightGCN", n_layers=3).model.calculate_loss(batch).double()
    own = own_embeddings(built)
    views = [
        sum(torch.linalg.matrix_power(view(built, number), power) @ own for power in range(4)) for number in (0, 1)
    ]
    expected = plain
    for nodes, part in ((batch["user_id"], slice(0, 17)), (batch["item_id"], slice(17, None))):
        first, second = (functional.normalize(one[part], dim=1) for one in views)
        chances = (first[nodes] @ second.T / 0.2).softmax(dim=1)
        expected = expected - 0.7 * chances.gather(1, nodes.unsqueeze(1)).log().mean()
    assert_same(built.model.calculate_loss(batch), expected)


def test_a_node_that_is_alike_in_both_views_is_known_again() -> None:
    nodes = torch.eye(4)
    loss = recognition_loss(nodes, nodes, torch.tensor([0, 2]), temperature=0.5)
    # A cosine of 1 against three of 0: -log(e^2 / (e^2 + 3)).
    expected = -torch.log(torch.tensor(2.0).exp() / (torch.tensor(2.0).exp() + 3))
    torch.testing.assert_close(loss, expected)
