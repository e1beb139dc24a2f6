"""What metrics are calculated from."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

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
        popularity_rank: The place of each by its counts, 0 for the most used one; of equal counts the lower id first.
        categories: The share that each category has of each item, `[num_items + 1, categories]`; a row of zeros for an
            item without any, and in the last row, which stands for no item.
        vectors: What tells items apart, `[num_items + 1, size]`, of length 1, or 0 for an item of which nothing is
            known; the last row stands for no item.
    """

    num_items: int
    first_item: int = 1
    item_counts: Tensor | None = None
    tail: Tensor | None = None
    popularity_rank: Tensor | None = None
    categories: Tensor | None = None
    vectors: Tensor | None = None

    @property
    def size(self) -> int:
        """How many items there are, padding not counted."""
        return self.num_items - self.first_item

    def to(self, device: torch.device) -> "Catalogue":
        """Return the catalogue with its tensors on `device`."""
        known = (self.item_counts, self.tail, self.popularity_rank, self.categories, self.vectors)
        return Catalogue(self.num_items, self.first_item, *(None if one is None else one.to(device) for one in known))


@dataclass(frozen=True)
class Histories:
    """What some users have in training, one user after the other.

    Attributes:
        items: The items.
        counts: How many each user has.
    """

    items: Tensor
    counts: Tensor

    def sums(self, table: Tensor) -> Tensor:
        """Return, for each user, the sum of the rows of `table` that stand for the user's items."""
        begins = self.counts.cumsum(0) - self.counts
        return embedding_bag(self.items, table, begins, mode="sum")


@dataclass(frozen=True)
class Ranking:
    """The first items of the ranked lists of some users.

    Attributes:
        hits: Whether the item at each rank is a positive, as `[users, ranks]`; the best rank is the first.
        positives: How many positives each user has, in the list or not.
        items: The items, as `[users, ranks]`; -1 where a user has fewer candidates than ranks.
        catalogue: What they were taken from.
        gains: 2 ** relevance - 1 of the item at each rank, 0 where it is no positive; None where no metric needs it.
        best_gains: The gains of each user's positives, the highest first, `[users, ranks]`; 0 where there are no more.
        histories: What the users have in training; None where no metric needs it.
    """

    hits: Tensor
    positives: Tensor
    items: Tensor
    catalogue: Catalogue
    gains: Tensor | None = None
    best_gains: Tensor | None = None
    histories: Histories | None = None

    def at(self, k: int) -> Tensor:
        """Return the hits of the first `k` ranks, in float64."""
        return self.hits[:, :k].double()

    def sums(self, table: Tensor, k: int) -> Tensor:
        """Return, for each user, the sum of the rows of `table` that stand for the first `k` items.

        The last row of the table stands for no item.
        """
        items = self.items[:, :k]
        return embedding_bag(items.where(items != NO_ITEM, len(table) - 1), table, mode="sum")


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


@dataclass(frozen=True)
class GroupRates:
    """How the groups of a division fare, one number for each group.

    Attributes:
        recall: Of users, the mean recall of a group; of items, the share of all positives of a group that is found. nan
            for a group without any.
        exposure: Of items, what a group gets of the attention, as a share, by what it is of all items: 1 if it gets as
            much as it is. An item at rank j gets 1 / log2(j + 1). nan for an empty group.
    """

    recall: Tensor
    exposure: Tensor
