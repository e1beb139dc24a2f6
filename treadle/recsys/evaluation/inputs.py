"""What metrics are calculated from."""

from dataclasses import dataclass

import torch
from torch import Tensor

NO_ITEM = -1
"""Stands in a list of recommendations where nothing is left to recommend."""


@dataclass(frozen=True)
class Catalogue:
    """The items that can be recommended.

    Attributes:
        num_items: How many item ids there are, padding included.
        first_item: The lowest id that is an item.
        item_counts: How often each was used in training, if known.
        tail: Whether each is in the long tail, if its counts are known.
    """

    num_items: int
    first_item: int = 1
    item_counts: Tensor | None = None
    tail: Tensor | None = None

    @property
    def size(self) -> int:
        """How many items there are, padding not counted."""
        return self.num_items - self.first_item

    def to(self, device: torch.device) -> "Catalogue":
        """Return the catalogue with its tensors on `device`."""
        counts, tail = (None if one is None else one.to(device) for one in (self.item_counts, self.tail))
        return Catalogue(self.num_items, self.first_item, counts, tail)


@dataclass(frozen=True)
class Ranking:
    """The first items of the ranked lists of some users.

    Attributes:
        hits: Whether the item at each rank is a positive, as `[users, ranks]`; the best rank is the first.
        positives: How many positives each user has, in the list or not.
        items: The items, as `[users, ranks]`; -1 where a user has fewer candidates than ranks.
        catalogue: What they were taken from.
    """

    hits: Tensor
    positives: Tensor
    items: Tensor
    catalogue: Catalogue

    def at(self, k: int) -> Tensor:
        """Return the hits of the first `k` ranks, in float64."""
        return self.hits[:, :k].double()


@dataclass(frozen=True)
class OrderedPairs:
    """How many pairs of a positive and a negative have the positive above, for each of some users.

    Attributes:
        in_order: Pairs in order; a tie is half a pair.
        positives: How many positives each user has.
        negatives: How many negatives each user has.
        weight: What users should weigh by, `impressions` or `positives`.
    """

    in_order: Tensor
    positives: Tensor
    negatives: Tensor
    weight: str = "impressions"


@dataclass(frozen=True)
class LabelledRows:
    """Scores of rows whose outcome is known.

    Attributes:
        scores: What the model says, in float64.
        labels: What was so, in float64.
        users: Whose row it is, if known.
        logits: Whether a sigmoid would make the scores probabilities; if not, they are taken as they are.
    """

    scores: Tensor
    labels: Tensor
    users: Tensor | None = None
    logits: bool = False
