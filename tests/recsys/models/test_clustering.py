"""k-means against what it is said to do, and against a loop over points."""

import pytest
import torch
from torch import Tensor

from treadle.errors import ConfigError
from treadle.recsys.models.general_recommender import ncl as clustering
from treadle.recsys.models.general_recommender.ncl import k_means


def some_points(number: int = 60, size: int = 5) -> Tensor:
    return torch.randn(number, size, generator=torch.Generator().manual_seed(3))


def by_hand(points: Tensor, n_clusters: int, seed: int) -> tuple[Tensor, list[int]]:
    """Return the centres and members that Lloyd's algorithm comes to, one point after the other, in float64."""
    rows = points.double()
    chosen = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:n_clusters]
    centres, members = rows[chosen], [-1] * len(rows)
    for _ in range(100):
        found = [int((centres - row).square().sum(dim=1).argmin()) for row in rows]
        if found == members:
            break
        members = found
        own = [[row for row, member in zip(rows, members, strict=True) if member == one] for one in range(n_clusters)]
        centres = torch.stack([torch.stack(some).mean(dim=0) for some in own])
    return centres, members


@pytest.mark.parametrize("n_clusters", [1, 4, 9])
def test_clusters_are_those_of_a_loop_over_points(n_clusters: int) -> None:
    points = some_points()
    centres, members = k_means(points, n_clusters, seed=7, iterations=100)
    expected, expected_members = by_hand(points, n_clusters, seed=7)
    assert members.tolist() == expected_members
    torch.testing.assert_close(centres.double(), expected, rtol=0, atol=1e-6)


def test_points_are_gone_through_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = k_means(some_points(), 6, seed=1)
    monkeypatch.setattr(clustering, "AT_ONCE", 6 * 7)
    parts = k_means(some_points(), 6, seed=1)
    assert torch.equal(whole[1], parts[1])
    torch.testing.assert_close(whole[0], parts[0])


def test_equal_points_and_an_equal_seed_give_equal_clusters() -> None:
    first, second = k_means(some_points(), 8, seed=5), k_means(some_points(), 8, seed=5)
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])
    assert not torch.equal(first[1], k_means(some_points(), 8, seed=6)[1])


@pytest.mark.parametrize("seed", range(5))
def test_a_cluster_without_points_begins_anew_far_from_the_others(seed: int) -> None:
    # Of nine points that are the same at most one can be a cluster of its own.
    points = torch.tensor([[0.0]] * 9 + [[5.0], [9.0]])
    centres, members = k_means(points, 3, seed=seed)
    assert sorted(centres.flatten().tolist()) == [0.0, 5.0, 9.0]
    assert len(set(members[:9].tolist())) == 1


def test_as_many_clusters_as_points_are_the_points() -> None:
    points = some_points(6)
    centres, members = k_means(points, 6, seed=0)
    assert torch.equal(centres[members], points)


def test_float64_stays_float64_and_half_precision_is_widened() -> None:
    assert k_means(some_points().double(), 3, seed=0)[0].dtype == torch.float64
    assert k_means(some_points().bfloat16(), 3, seed=0)[0].dtype == torch.float32


def test_autocast_does_not_round_distances() -> None:
    plain = k_means(some_points(), 6, seed=1)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(k_means(some_points(), 6, seed=1)[0], plain[0])


def test_more_clusters_than_points_are_refused() -> None:
    with pytest.raises(
        ConfigError, match="n_clusters=7 is more than the 6 points that are to be divided; use at most 6"
    ):
        k_means(some_points(6), 7, seed=0)
