"""Factorisations by least squares, neighbours, walks and UltraGCN against a few lines of NumPy."""

from typing import Any

import numpy as np
import pytest
import torch

from tests.recsys.models.tiny_ratings import Built, all_scores, build, fitted
from treadle.errors import ConfigError
from treadle.recsys.models import least_squares

Matrix = np.ndarray[Any, Any]


def ratings_of(built: Built) -> Matrix:
    return built.matrix().numpy()


# iALS


def solved(ratings: Matrix, columns: Matrix, unobserved: float, penalties: Matrix) -> Matrix:
    """Return the factors of rows that minimise the weighted squares, one row after the other."""
    gramian, size = unobserved * columns.T @ columns, columns.shape[1]
    found = []
    for row, penalty in zip(ratings, penalties, strict=True):
        used = columns[row > 0]
        found.append(np.linalg.solve(gramian + used.T @ used + penalty * np.eye(size), row @ columns))
    return np.array(found)


def ials_scores(built: Built, iterations: int, reg_weight: float, exponent: float, unobserved: float) -> Matrix:
    ratings = ratings_of(built)
    generator = torch.Generator().manual_seed(built.model.seed)
    items = (torch.randn(ratings.shape[1], 5, generator=generator) * (0.1 / 5**0.5)).double().numpy()
    items[0] = 0
    of_users, of_items = (
        reg_weight * (ratings.sum(axis=axis) + unobserved * (ratings.shape[axis] - 1)) ** exponent for axis in (1, 0)
    )
    for _ in range(iterations):
        users = solved(ratings, items, unobserved, of_users)
        items = solved(ratings.T, users, unobserved, of_items)
    scores: Matrix = users @ items.T
    return scores


@pytest.mark.parametrize("given", [{"solver": "cholesky"}, {"solver": "cg", "cg_steps": 12}], ids=["cholesky", "cg"])
@pytest.mark.parametrize("exponent", [1.0, 0.5])
def test_ials_solves_for_each_side_in_turns(given: dict[str, Any], exponent: float) -> None:
    built = fitted("IALS", reg_exponent=exponent, **given)
    expected = ials_scores(built, 4, 0.05, exponent, 0.3)
    np.testing.assert_allclose(all_scores(built).numpy(), expected, rtol=1e-4, atol=1e-5)


def test_ials_solves_exactly_for_long_rows_in_the_factors_and_for_short_ones_in_the_columns() -> None:
    # With two factors every row has more columns than factors, with 40 none.
    for size in (2, 40):
        exact, steps = (
            all_scores(fitted("IALS", embedding_size=size, iterations=2, **given))
            for given in ({"solver": "cholesky"}, {"solver": "cg", "cg_steps": 30})
        )
        torch.testing.assert_close(exact, steps, rtol=1e-3, atol=1e-5)


def test_ials_solves_blocks_of_rows_as_it_solves_all(monkeypatch: pytest.MonkeyPatch) -> None:
    together = all_scores(fitted("IALS", solver="cholesky"))
    monkeypatch.setitem(least_squares.CELLS, "cpu", 1)
    torch.testing.assert_close(all_scores(fitted("IALS", solver="cholesky")), together, rtol=1e-4, atol=1e-6)


def test_the_objective_of_ials_falls_with_every_iteration() -> None:
    values = []
    for iterations in (1, 2, 4, 8):
        built = fitted("IALS", iterations=iterations)
        users, items = (part.double().numpy() for part in (built.model.user_vectors(), built.model.item_vectors()))
        ratings, scores = ratings_of(built), users @ items.T
        loss = (ratings * (1 - scores) ** 2).sum() + 0.3 * (scores**2).sum()
        for axis, factors in ((1, users), (0, items)):
            counts = ratings.sum(axis=axis) + 0.3 * (ratings.shape[axis] - 1)
            loss += 0.05 * (counts * (factors**2).sum(axis=1)).sum()
        values.append(loss)
    assert values == sorted(values, reverse=True)
    assert values[-1] < 0.99 * values[0]


def test_ials_refuses_a_solver_that_there_is_not() -> None:
    with pytest.raises(ConfigError, match=r"solver='lu' .*cholesky"):
        build("IALS", solver="lu")


# Neighbours


@pytest.mark.parametrize("similarity", ["jaccard", "dice"])
@pytest.mark.parametrize("name", ["ItemKNN", "UserKNN"])
def test_neighbours_may_be_those_of_the_most_similar_sets(name: str, similarity: str) -> None:
    built = fitted(name, k=3, shrink=0.5, similarity=similarity)
    ratings = ratings_of(built)
    rows = ratings if name == "UserKNN" else ratings.T
    both, sizes = rows @ rows.T, rows.sum(axis=1)
    either = np.add.outer(sizes, sizes)
    similar = both / (either - both + 0.5) if similarity == "jaccard" else 2 * both / (either + 0.5)
    np.fill_diagonal(similar, 0)
    # Of each row the three nearest; in float32, as there, for what is equally near.
    nearest = np.argsort(-similar.astype(np.float32), axis=1, kind="stable")[:, :3]
    kept = np.zeros_like(similar)
    np.put_along_axis(kept, nearest, np.take_along_axis(similar, nearest, axis=1), axis=1)
    expected = kept @ ratings if name == "UserKNN" else ratings @ kept.T
    np.testing.assert_allclose(all_scores(built).numpy(), expected, rtol=1e-5, atol=1e-6)


def test_userknn_is_itemknn_with_users_for_neighbours() -> None:
    by_users = fitted("ItemKNN", k=3, shrink=1.0, knn_method="user")
    assert torch.equal(all_scores(fitted("UserKNN", k=3, shrink=1.0)), all_scores(by_users))
    with pytest.raises(ConfigError, match="UserKNN knows how similar users are; for items, take ItemKNN"):
        fitted("UserKNN").model.item_similarities(torch.tensor([1]))


def test_a_similarity_that_there_is_not_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"similarity='pearson' .*jaccard"):
        build("ItemKNN", similarity="pearson")


# Walks


@pytest.mark.parametrize("k", [2, 100])
def test_rp3beta_adds_up_walks_of_three_steps(k: int) -> None:
    built = fitted("RP3beta", k=k, alpha=0.8, beta=0.4)
    ratings = ratings_of(built)
    by_user, by_item = (np.maximum(ratings.sum(axis=axis), 1) for axis in (1, 0))
    walks = (ratings / by_item).T ** 0.8 @ (ratings.T / by_user).T ** 0.8 / by_item**0.4
    np.fill_diagonal(walks, 0)
    order = np.argsort(-walks.astype(np.float32), axis=1, kind="stable")[:, k:]
    np.put_along_axis(walks, order, 0, axis=1)
    np.testing.assert_allclose(all_scores(built).numpy(), ratings @ walks, rtol=1e-4, atol=1e-5)
    some = torch.tensor([3, 1])
    np.testing.assert_allclose(built.model.item_similarities(some).numpy(), walks[[3, 1]], rtol=1e-4, atol=1e-6)


# UltraGCN and ELSA


def test_ultragcn_pulls_pairs_by_their_degrees_and_by_items_used_together() -> None:
    given: dict[str, Any] = {"w1": 0.2, "w2": 0.5, "w3": 0.1, "w4": 0.7, "lambda": 0.3, "gamma": 0.02}
    sampled = {"distribution": "uniform", "sample_num": 2}
    built = build("UltraGCN", train_neg_sample_args=sampled, **given)
    batch, ratings = built.batch(), ratings_of(built)
    tables = built.model.user_embedding, built.model.item_embedding
    users, items = (table.weight.detach().double().numpy() for table in tables)
    by_user, by_item = ratings.sum(axis=1), ratings.sum(axis=0)
    common = ratings.T @ ratings
    totals = common.sum(axis=1)

    def weight(one: Any, other: Any) -> Any:
        return np.sqrt(one + 1) / np.maximum(one, 1) / np.sqrt(other + 1)

    strength = common * weight(totals[:, None], totals[None, :])

    def cost(score: Any) -> Any:
        return np.log1p(np.exp(-score))

    expected = 0.0
    columns = (batch[name].tolist() for name in ("user_id", "item_id", "neg_item_id"))
    for user, item, negatives in zip(*columns, strict=True):
        degrees = weight(by_user[user], by_item)
        expected += (0.2 + 0.5 * degrees[item]) * cost(users[user] @ items[item])
        pushed = [(0.1 + 0.7 * degrees[other]) * cost(-users[user] @ items[other]) for other in negatives]
        expected += 10 * np.mean(pushed)
        near = np.argsort(-strength[item].astype(np.float32), kind="stable")[:3]
        expected += 0.3 * sum(strength[item, other] * cost(users[user] @ items[other]) for other in near)
    # A full batch has 16 positives, with two negatives each.
    expected += 0.02 / 2 * len(batch) / 16 * ((users**2).sum() + (items**2).sum())
    assert built.model.calculate_loss(batch).item() == pytest.approx(expected, rel=1e-5)


def test_elsa_restores_histories_through_vectors_of_a_length_of_one() -> None:
    built = build("ELSA")
    ratings = ratings_of(built)
    vectors = built.model.item_embedding.weight.detach().double().numpy()
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    made = ratings @ vectors @ vectors.T - ratings
    np.testing.assert_allclose(all_scores(built).numpy(), made, rtol=1e-4, atol=1e-5)
    rows = built.batch()["user_id"].numpy()
    scaled = [part[rows] / np.linalg.norm(part[rows], axis=1, keepdims=True) for part in (made, ratings)]
    expected = ((scaled[0] - scaled[1]) ** 2).sum(axis=1).mean()
    assert built.model.calculate_loss(built.batch()).item() == pytest.approx(expected, rel=1e-5)
