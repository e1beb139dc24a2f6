"""NCL's losses and clusters against dense matrices."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.recsys.models.building import fill
from tests.recsys.models.test_graph_models import normalised, own_embeddings, products
from tests.recsys.models.tiny_ratings import Built, all_scores, build
from treadle.data.seeds import fold_seed
from treadle.errors import ConfigError
from treadle.recsys.models.general_recommender.ncl import k_means

WEIGHTS: dict[str, Any] = {"ssl_reg": 0.01, "proto_reg": 0.02, "reg_weight": 0.3, "alpha": 0.7, "ssl_temp": 0.4}


def large(**settings: Any) -> Built:
    """Return a model with large weights and clusters."""
    built = build("NCL", embedding_size=8, num_clusters=4, **{**WEIGHTS, **settings})
    fill(built.model)
    built.model.e_step()
    return built


def layers_of(built: Built, rounds: int) -> list[Tensor]:
    graph, layers = normalised(built.adjacency()), [own_embeddings(built)]
    for _ in range(rounds):
        layers.append(graph @ layers[-1])
    return layers


def sum_of_contrasts(asked: Tensor, answers: Tensor, right: Tensor, temperature: float) -> Tensor:
    """Return the sum over rows of `-log(exp(cosine to the right one) / sum of exp(cosine to each))`."""
    total = torch.zeros((), dtype=torch.float64)
    for row, place in zip(asked, right.tolist(), strict=True):
        cosines = torch.stack([functional.cosine_similarity(row, one, dim=0) for one in answers]) / temperature
        total -= (cosines[place].exp() / cosines.exp().sum()).log()
    return total


@pytest.mark.parametrize(("n_layers", "hyper_layers"), [(3, 1), (1, 1), (2, 2)])
def test_the_parts_of_the_loss_are_the_sums_of_the_authors_program(n_layers: int, hyper_layers: int) -> None:
    built = large(n_layers=n_layers, hyper_layers=hyper_layers)
    model, batch, layers = built.model, built.batch(), layers_of(built, max(n_layers, 2 * hyper_layers))
    assert len(batch) == model.full_batch == 32
    users, items, negatives = (batch[name] for name in ("user_id", "item_id", "neg_item_id"))
    own, heard, count = layers[0], layers[2 * hyper_layers], model.n_users
    scores = products(built, torch.stack(layers[: n_layers + 1]).mean(dim=0))
    squares = sum(own[nodes].square().sum() for nodes in (users, items + count, negatives + count))
    pairwise = -functional.logsigmoid(scores[users, items] - scores[users, negatives]).mean() + 0.3 * squares / 64
    neighbours = sum_of_contrasts(heard[users], own[:count], users, 0.4)
    neighbours = neighbours + 0.7 * sum_of_contrasts(heard[items + count], own[count:], items, 0.4)
    clusters = sum_of_contrasts(own[users], model.user_centroids.double(), model.user_2cluster[users], 0.4)
    clusters = clusters + sum_of_contrasts(
        own[items + count], model.item_centroids.double(), model.item_2cluster[items], 0.4
    )
    found = model.calculate_loss(batch)
    expected = (pairwise, 0.01 * neighbours, 0.02 * clusters)
    assert [one.item() for one in found] == pytest.approx([one.item() for one in expected], rel=1e-5)


def test_a_short_batch_pulls_as_strongly_as_a_full_one() -> None:
    built = large()
    batch = built.batch()
    half = batch[:16]
    whole, part = built.model.calculate_loss(batch), built.model.calculate_loss(half)
    rest = built.model.calculate_loss(batch[16:])
    for place in (1, 2):
        assert (part[place] + rest[place]).item() / 2 == pytest.approx(whole[place].item(), rel=1e-5)


def test_scores_are_those_of_lightgcn_with_the_same_weights() -> None:
    built, other = large(), build("LightGCN", embedding_size=8, n_layers=3)
    fill(other.model)
    torch.testing.assert_close(all_scores(built), all_scores(other))


def test_clusters_are_of_all_users_and_items_but_padding() -> None:
    model = large().model
    centres, members = k_means(model.user_embedding.weight[1:], 4, seed=fold_seed(model.seed, "clusters", "user"))
    assert torch.equal(model.user_2cluster[1:], members)
    assert torch.equal(model.user_centroids, functional.normalize(centres, dim=1))
    assert model.item_2cluster.shape == (model.n_items,)
    torch.testing.assert_close(model.item_centroids.norm(dim=1), torch.ones(4))


def test_clusters_are_part_of_the_state_and_stay_where_they_are() -> None:
    model = build("NCL", embedding_size=8, num_clusters=4).model
    before = model.user_centroids
    model.e_step()
    assert before is model.user_centroids
    assert before.abs().sum() > 0
    kept = {name for name in model.state_dict() if "cluster" in name or "centroids" in name}
    assert kept == {"user_centroids", "item_centroids", "user_2cluster", "item_2cluster"}


@pytest.mark.parametrize(
    ("clusters", "told"),
    [
        (17, "num_clusters=17 is more than the 16 users of 'tiny' that are to be divided; use at most 16"),
        (13, "num_clusters=13 is more than the 12 items of 'tiny' that are to be divided; use at most 12"),
    ],
)
def test_more_clusters_than_users_or_items_are_refused_when_the_model_is_built(clusters: int, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        build("NCL", embedding_size=8, num_clusters=clusters)


def test_messages_in_half_precision_are_refused() -> None:
    with pytest.raises(ConfigError, match="message_precision='bf16' is not for NCL, whose layers are each a part of"):
        build("NCL", embedding_size=8, num_clusters=3, message_precision="bf16")
