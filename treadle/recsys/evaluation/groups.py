"""Groups of users, or of items, to break a result down by."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from treadle.errors import ConfigError

NO_GROUP = -1
"""The group of an id that belongs to none, such as padding."""


@dataclass(frozen=True)
class Groups:
    """A division of users or items into groups.

    Attributes:
        name: What it divides by, such as `activity`.
        labels: What each group is called.
        of: The group of each id, as an index into `labels`; -1 for none.
    """

    name: str
    labels: tuple[str, ...]
    of: Tensor

    def to(self, device: torch.device) -> "Groups":
        """Return the groups with their tensor on `device`."""
        return Groups(self.name, self.labels, self.of.to(device))


def groups_by_count(name: str, counts: Tensor, edges: Sequence[int], *, first_id: int = 0) -> Groups:
    """Return groups by how many interactions an id has: below the first edge, from there to the next, and so on.

    Args:
        name: What to call the division, such as `activity` for users, `popularity` for items.
        counts: The number of interactions of each id, in training.
        edges: Where a new group begins, rising.
        first_id: The lowest id that belongs to a group; those below are padding.

    Raises:
        ConfigError: The edges do not rise.

    >>> groups = groups_by_count("activity", torch.tensor([0, 3, 10, 50]), [5, 20])
    >>> groups.labels, groups.of.tolist()
    (('0-4', '5-19', '20+'), [0, 0, 1, 2])
    """
    steps = list(edges)
    if not steps or steps[0] < 1 or any(low >= high for low, high in pairwise(steps)):
        raise ConfigError(f"edges={steps} of {name!r}: give rising whole numbers from 1 on")
    labels = [_span(low, high - 1) for low, high in pairwise([0, *steps])] + [f"{steps[-1]}+"]
    of = torch.searchsorted(torch.tensor(steps, device=counts.device), counts.long(), right=True)
    of[:first_id] = NO_GROUP
    return Groups(name, tuple(labels), of)


def groups_by_quantile(name: str, counts: Tensor, parts: int, *, first_id: int = 0) -> Groups:
    """Return groups of about equally many ids, from the least to the most interactions.

    Ids with the same number of interactions are in the same group, so that there can be fewer groups than asked for.

    Args:
        name: What to call the division.
        counts: The number of interactions of each id, in training.
        parts: How many groups to make.
        first_id: The lowest id that belongs to a group.
    """
    if parts < 2:
        raise ConfigError(f"parts={parts} of {name!r}: divide into at least two groups")
    ordered = counts[first_id:].sort().values.tolist()
    cuts = {ordered[len(ordered) * part // parts] for part in range(1, parts)} if ordered else set()
    edges = sorted(int(cut) for cut in cuts if cut > (ordered[0] if ordered else 0))
    if not edges:
        raise ConfigError(f"{name!r} cannot be divided: all ids have {ordered[:1] or 'no'} interactions")
    return groups_by_count(name, counts, edges, first_id=first_id)


def _span(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}-{high}"
