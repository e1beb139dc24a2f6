"""Metrics of ranked lists: a value for each user, from where the positives stand in the list.

Here h_j is 1 if the item at rank j is a positive, and 0 if not; R is the number of the user's positives.
"""

import torch
from torch import Tensor

from treadle.recsys.evaluation.inputs import NO_ITEM, OrderedPairs, Ranking
from treadle.recsys.evaluation.registry import register_metric


@register_metric("Hit")
def hit(ranking: Ranking, k: int) -> Tensor:
    """1 if any of the first k items is a positive, else 0."""
    return ranking.hits[:, :k].any(dim=1).double()


@register_metric("MRR")
def mrr(ranking: Ranking, k: int) -> Tensor:
    """1 / j for the first hit at rank j <= k, 0 without one."""
    return (ranking.at(k) / _ranks(ranking, k)).amax(dim=1)


@register_metric("Recall")
def recall(ranking: Ranking, k: int) -> Tensor:
    """The share of the positives that are among the first k items: sum of h / R."""
    return ranking.at(k).sum(dim=1) / ranking.positives


@register_metric("Precision")
def precision(ranking: Ranking, k: int) -> Tensor:
    """The share of the first k places that hold a positive: sum of h / k."""
    return ranking.at(k).sum(dim=1) / k


@register_metric("MAP")
def average_precision(ranking: Ranking, k: int) -> Tensor:
    """Sum over j <= k of h_j times the precision at j, divided by min(k, R)."""
    hits = ranking.at(k)
    precisions = hits.cumsum(dim=1) / _ranks(ranking, k)
    return (hits * precisions).sum(dim=1) / ranking.positives.clamp(max=k)


@register_metric("NDCG")
def ndcg(ranking: Ranking, k: int) -> Tensor:
    """Sum of h_j / log2(j + 1), divided by what min(k, R) hits at the first ranks would give.

    With binary gains (Järvelin and Kekäläinen, "Cumulated gain-based evaluation of IR techniques", 2002).
    """
    discounts = 1 / (_ranks(ranking, k) + 1).log2()
    ideal = torch.cat([discounts.new_zeros(1), discounts.cumsum(0)])
    return (ranking.at(k) * discounts).sum(dim=1) / ideal[ranking.positives.clamp(max=k)]


@register_metric("GAUC", kind="pairs")
def gauc(pairs: OrderedPairs) -> tuple[Tensor, Tensor]:
    """The area under the ROC curve of each user, weighted by the user's impressions.

    As in Zhou et al., "Deep interest network for click-through rate prediction" (2018). With `gauc_weight="positives"`
    users weigh as much as they have positives, which is what RecBole does. A user without a negative has no area.
    """
    area = pairs.in_order / (pairs.positives * pairs.negatives)
    impressions = pairs.positives + pairs.negatives
    return area, pairs.positives if pairs.weight == "positives" else impressions


@register_metric("AveragePopularity", smaller=True, needs_item_counts=True, rates_positives=False)
def average_popularity(ranking: Ranking, k: int) -> Tensor:
    """The mean number of training rows of the first k items."""
    assert ranking.catalogue.item_counts is not None
    return _mean_over_items(ranking, k, ranking.catalogue.item_counts)


@register_metric("TailPercentage", needs_item_counts=True, rates_positives=False)
def tail_percentage(ranking: Ranking, k: int) -> Tensor:
    """The share of the first k items that are in the long tail."""
    assert ranking.catalogue.tail is not None
    return _mean_over_items(ranking, k, ranking.catalogue.tail)


def _ranks(ranking: Ranking, k: int) -> Tensor:
    return torch.arange(1, k + 1, dtype=torch.float64, device=ranking.hits.device)


def _mean_over_items(ranking: Ranking, k: int, values: Tensor) -> Tensor:
    """Return the mean of `values` over the recommended items; nan for a user who gets none."""
    items = ranking.items[:, :k]
    there = items != NO_ITEM
    picked = values.double()[items.clamp(min=0)] * there
    return picked.sum(dim=1) / there.sum(dim=1)
