"""Clusters of points, for models that compare an embedding with the centre of those like it."""

import torch
from torch import Tensor
from torch.nn import functional

from treadle.errors import ConfigError

ITERATIONS = 25
"""How often centres are moved, if points do not stay where they are before that."""
AT_ONCE = 1 << 24
"""How many distances are held at a time."""


@torch.no_grad()
def k_means(points: Tensor, n_clusters: int, *, seed: int, iterations: int = ITERATIONS) -> tuple[Tensor, Tensor]:
    """Divide points into clusters, each the points that are nearest to its centre, by Lloyd's algorithm.

    The first centres are points that the seed chooses. A cluster that loses all its points begins anew at one of those
    that are farthest from their centres. Equal points and an equal seed give equal clusters, on a GPU too: sums are
    taken cluster by cluster, in the order of the points.

    Args:
        points: `[points, size]`.
        n_clusters: How many clusters, at most as many as there are points.
        seed: What chooses the first centres.
        iterations: The most times that centres are moved.

    Returns:
        The centres `[clusters, size]`, and for each point the number of its cluster.

    Raises:
        ConfigError: There are fewer points than clusters.

    >>> centres, members = k_means(torch.tensor([[0.0], [1.0], [10.0], [11.0]]), 2, seed=0)
    >>> sorted(centres.flatten().tolist()), bool(members[0] == members[1] != members[2] == members[3])
    ([0.5, 10.5], True)
    """
    check_clusters(n_clusters, len(points), "points")
    values = points if points.dtype == torch.float64 else points.float()
    chosen = torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))[:n_clusters]
    with torch.autocast(values.device.type, enabled=False):
        centres = values[chosen.to(values.device)]
        members, distances = _nearest(values, centres)
        for _ in range(iterations):
            centres = _centres(values, members, distances, n_clusters)
            before = members
            members, distances = _nearest(values, centres)
            if torch.equal(before, members):
                break
    return centres, members


def check_clusters(n_clusters: int, n_points: int, what: str, name: str = "n_clusters") -> None:
    """Make sure that there are not more clusters than points.

    Raises:
        ConfigError: There are.
    """
    if n_clusters > n_points:
        raise ConfigError(
            f"{name}={n_clusters} is more than the {n_points} {what} that are to be divided; use at most {n_points}"
        )


def _nearest(points: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """Return the number of the nearest centre of each point, and the square of how far it is."""
    squares = centres.square().sum(dim=1)
    found = []
    for part in torch.split(points, max(AT_ONCE // len(centres), 1)):
        # The square of the point itself is the same for all centres.
        found.append(torch.addmm(squares, part, centres.T, alpha=-2).min(dim=1))
    members = torch.cat([one.indices for one in found])
    return members, torch.cat([one.values for one in found]) + points.square().sum(dim=1)


def _centres(points: Tensor, members: Tensor, distances: Tensor, n_clusters: int) -> Tensor:
    """Return the mean of each cluster, and for an empty one a point that is far from its centre."""
    counts = torch.bincount(members, minlength=n_clusters)
    ordered = members.sort(stable=True).indices
    # Sums of bags, not of scattered rows: those a GPU adds in any order.
    sums = functional.embedding_bag(ordered, points, counts.cumsum(0) - counts, mode="sum")
    empty = counts == 0
    farthest = distances.sort(descending=True, stable=True).indices[:n_clusters]
    substitutes = points[farthest[(empty.cumsum(0) - 1).clamp(min=0)]]
    return torch.where(empty.unsqueeze(1), substitutes, sums / counts.clamp(min=1).unsqueeze(1))
