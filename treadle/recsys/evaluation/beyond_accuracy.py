"""Metrics of more than hits: graded relevance, diversity, novelty, popularity, calibration, fairness, coverage."""

import math

import torch
from torch import Tensor

from treadle.recsys.evaluation.inputs import NO_ITEM, GroupRates, Ranking
from treadle.recsys.evaluation.metrics import mean_over_items, ranks, register_metric

# Of lists longer than those that are shown, and of positives that are not worth the same


@register_metric("FirstStageRecall", first_stage=True)
def first_stage_recall(ranking: Ranking, k: int) -> Tensor:
    """The share of the positives among the first k items, where k is a length of `first_stage`.

    It is what a second stage can reach at most that orders these items anew.
    """
    return ranking.at(k).sum(dim=1) / ranking.positives


@register_metric("GradedNDCG", requires=["relevance"], rates_positives=False)
def graded_ndcg(ranking: Ranking, k: int) -> Tensor:
    """Sum of (2 ** relevance_j - 1) / log2(j + 1), divided by the highest that the user's positives could give.

    With exponential gains (Burges et al., "Learning to rank using gradient descent", 2005). A user whose positives are
    worth nothing is left out.
    """
    assert ranking.gains is not None
    assert ranking.best_gains is not None
    discounts = 1 / (ranks(ranking, k) + 1).log2()
    best = (ranking.best_gains[:, :k] * discounts).sum(dim=1)
    return (ranking.gains[:, :k] * discounts).sum(dim=1) / best


@register_metric("UserCoverage", rates_positives=False)
def user_coverage(ranking: Ranking, k: int) -> Tensor:
    """1 if the user is recommended k items, 0 if fewer are left: the share of users with a whole list."""
    return (ranking.items[:, :k] != NO_ITEM).all(dim=1).double()


# Of what is recommended: how unlike, how new, how popular


@register_metric("IntraListDiversity", requires=["item_vectors"], rates_positives=False)
def intra_list_diversity(ranking: Ranking, k: int) -> Tensor:
    """The mean of 1 - cosine over all pairs of the first k items (Ziegler et al., 2005).

    Items of which nothing is known are left out, and users with fewer than two others. The sum of the cosines of all
    ordered pairs is the squared length of the sum of the vectors, less one for each of them.
    """
    vectors = ranking.catalogue.vectors
    assert vectors is not None
    known = vectors.square().sum(dim=1, keepdim=True).round()
    number = ranking.sums(known, k).squeeze(1)
    together = ranking.sums(vectors, k).square().sum(dim=1)
    apart = 1 - (together - number) / (number * (number - 1))
    return apart.where(number > 1, torch.nan)


@register_metric("Novelty", requires=["item_counts"], rates_positives=False)
def novelty(ranking: Ranking, k: int) -> Tensor:
    """The mean self-information of the first k items, in bits: -log2 of the item's share of the training rows.

    An item that training does not have counts as if it were there once (Zhou et al., "Solving the apparent
    diversity-accuracy dilemma of recommender systems", 2010, with shares of rows).
    """
    counts = ranking.catalogue.item_counts
    assert counts is not None
    return mean_over_items(ranking, k, (counts.sum() / counts.double().clamp(min=1)).log2())


@register_metric("Serendipity", requires=["item_counts"], rates_positives=False)
def serendipity(ranking: Ranking, k: int) -> Tensor:
    """The share of the first k places that hold a positive which is none of the k most popular items.

    What is popular is what the simplest of recommenders would have found (Ge et al., "Beyond accuracy", 2010).
    """
    place = ranking.catalogue.popularity_rank
    assert place is not None
    items = ranking.items[:, :k]
    unexpected = place[items.clamp(min=0)] >= k
    return (ranking.at(k) * unexpected).sum(dim=1) / k


@register_metric("PopularityLift", smaller=True, requires=["item_counts", "history"], rates_positives=False)
def popularity_lift(ranking: Ranking, k: int) -> tuple[Tensor, Tensor]:
    """How much more popular the first k items are than what the users have: (recommended - own) / own.

    Both are means over users of the mean number of training rows (Abdollahpouri et al., "The connection between
    popularity bias, calibration, and fairness in recommendation", 2020). The ratio of these means is the mean of the
    users' own ratios, weighted by the popularity of what they have.
    """
    counts, histories = ranking.catalogue.item_counts, ranking.histories
    assert counts is not None
    assert histories is not None
    own = histories.sums(counts.double().unsqueeze(1)).squeeze(1) / histories.counts
    recommended = mean_over_items(ranking, k, counts)
    return recommended / own.where(own > 0, torch.nan) - 1, own


@register_metric("Miscalibration", smaller=True, requires=["item_categories", "history"], rates_positives=False)
def miscalibration(ranking: Ranking, k: int) -> Tensor:
    """The Jensen-Shannon divergence of the categories of the first k items from those of the user's history, in bits.

    0 if both have the same shares of each category, 1 if they have none in common (Steck, "Calibrated
    recommendations", 2018). An item of several categories counts for each in equal parts; one without any is left out,
    and so is a user who has no others.
    """
    categories, histories = ranking.catalogue.categories, ranking.histories
    assert categories is not None
    assert histories is not None
    wanted, shown = (_shares(one) for one in (histories.sums(categories), ranking.sums(categories, k)))
    middle = (wanted + shown) / 2
    return (_divergence(wanted, middle) + _divergence(shown, middle)) / 2


def _shares(sums: Tensor) -> Tensor:
    total = sums.sum(dim=1, keepdim=True)
    return sums / total.where(total > 0, torch.nan)


def _divergence(shares: Tensor, middle: Tensor) -> Tensor:
    """Return the Kullback-Leibler divergence of rows, in bits; a share of 0 adds nothing."""
    nats: Tensor = torch.special.xlogy(shares, shares) - torch.special.xlogy(shares, middle)
    return nats.sum(dim=1) / math.log(2)


# Of groups of users, or of items: how far apart they are


@register_metric("UserRecallGap", kind="user_groups", smaller=True)
def user_recall_gap(groups: GroupRates, k: int) -> Tensor:
    """The mean recall of the group of users with the highest, less that of the group with the lowest."""
    return _gap(groups.recall)


@register_metric("UserRecallRatio", kind="user_groups")
def user_recall_ratio(groups: GroupRates, k: int) -> Tensor:
    """The mean recall of the group of users with the lowest, by that of the group with the highest."""
    return _ratio(groups.recall)


@register_metric("ItemRecallGap", kind="item_groups", smaller=True)
def item_recall_gap(groups: GroupRates, k: int) -> Tensor:
    """The recall of the group of items with the highest, less that of the group with the lowest.

    The recall of a group is the share of all its positives that are found: equal opportunity (Zhu et al., "Measuring
    and mitigating item under-recommendation bias", 2020).
    """
    return _gap(groups.recall)


@register_metric("ItemRecallRatio", kind="item_groups")
def item_recall_ratio(groups: GroupRates, k: int) -> Tensor:
    """The recall of the group of items with the lowest, by that of the group with the highest."""
    return _ratio(groups.recall)


@register_metric("ItemExposureGap", kind="item_groups", smaller=True)
def item_exposure_gap(groups: GroupRates, k: int) -> Tensor:
    """The exposure of the group of items with the most, by its size, less that of the group with the least.

    An item at rank j is seen with the weight 1 / log2(j + 1) (Singh and Joachims, "Fairness of exposure in rankings",
    2018). A group that gets as much of all exposure as it has of all items has an exposure of 1.
    """
    return _gap(groups.exposure)


@register_metric("ItemExposureRatio", kind="item_groups")
def item_exposure_ratio(groups: GroupRates, k: int) -> Tensor:
    """The exposure of the group of items with the least, by its size, by that of the group with the most."""
    return _ratio(groups.exposure)


def _gap(rates: Tensor) -> Tensor:
    lowest, highest = _extremes(rates)
    return highest - lowest


def _ratio(rates: Tensor) -> Tensor:
    """Return the lowest by the highest; 1 where both are 0, for then all fare alike."""
    lowest, highest = _extremes(rates)
    return (lowest / highest).where(highest > 0, highest + 1)


def _extremes(rates: Tensor) -> tuple[Tensor, Tensor]:
    """Return the lowest and the highest rate, groups without any left out; nan where no group has one."""
    nobody = rates.isnan()
    none = torch.where(nobody.all(), torch.nan, 0.0)
    return rates.where(~nobody, torch.inf).amin() + none, rates.where(~nobody, -torch.inf).amax() + none
