"""The metrics by name, and the decorator that adds one."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from treadle.errors import ConfigError, DataError, did_you_mean
from treadle.recsys.evaluation.inputs import NO_ITEM, LabelledRows, OrderedPairs, Ranking

Kind = Literal["ranking", "pairs", "catalogue", "labelled", "user_groups", "item_groups", "collected"]
"""What a metric is calculated from: see `register_metric`; `collected` ones are classes, see `AbstractMetric`."""
FUNCTIONS = ("ranking", "pairs", "catalogue", "labelled", "user_groups", "item_groups")
"""The kinds of metrics that are functions."""
WITH_CUTOFF = ("ranking", "catalogue", "user_groups", "item_groups")
REQUIREMENTS = ("item_counts", "item_categories", "item_vectors", "history", "relevance", "user_groups", "item_groups")
"""What a metric may need to know beside the ranking."""
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Metric:
    """A metric as it was registered.

    Attributes:
        name: As configurations write it, such as `NDCG`; results use it in lower case.
        kind: What its function is given.
        function: Calculates it.
        smaller: Whether a smaller value is a better one.
        needs_item_counts: Whether it looks at how often items were used in training.
        rates_positives: Whether it says something about positives, so that it can be told for some of them only.
        needs: Of a class, what it is calculated from.
        cutoff: Of a class of rankings, whether there is a value for each k.
        requires: What it needs to know beside the ranking, of `REQUIREMENTS`.
        first_stage: Whether its lists are those of a first stage, with lengths of their own.
    """

    name: str
    kind: Kind
    function: Callable[..., Any]
    smaller: bool = False
    needs_item_counts: bool = False
    rates_positives: bool = True
    needs: tuple[str, ...] = ()
    cutoff: bool = False
    requires: tuple[str, ...] = ()
    first_stage: bool = False

    @property
    def key(self) -> str:
        """The name in lower case, as it stands in results."""
        return self.name.lower()

    @property
    def has_cutoff(self) -> bool:
        """Whether there is a value for each k of `topk`."""
        return self.kind in WITH_CUTOFF or (self.kind == "collected" and self.cutoff)

    @property
    def uses_lists(self) -> bool:
        """Whether it looks at ranked lists."""
        return self.has_cutoff or bool({"rec.topk", "rec.items"} & set(self.needs))

    def cutoffs(self, topk: Sequence[int], first_stage: Sequence[int]) -> Sequence[int]:
        """Return the k that it has a value for, of those of ranked lists and those of a first stage."""
        if not self.has_cutoff:
            return (0,)
        return first_stage if self.first_stage else topk


_metrics: dict[str, Metric] = {}


def register_metric(
    name: str,
    *,
    kind: Kind = "ranking",
    smaller: bool = False,
    needs_item_counts: bool = False,
    rates_positives: bool = True,
    requires: Sequence[str] = (),
    first_stage: bool = False,
    replace: bool = False,
) -> Callable[[Function], Function]:
    """Register the decorated function as the metric `name`, usable by that name wherever metrics are named.

    | kind | the function takes | and returns |
    |---|---|---|
    | `ranking` | a `Ranking` (hits, number of positives, items) and k | a value for each user, averaged over users |
    | `pairs` | `OrderedPairs` (pairs in order, positives, negatives) | values and weights, one for each user |
    | `catalogue` | how often each item is recommended, and k | one value |
    | `labelled` | `LabelledRows` (scores, labels, users) | one value |
    | `user_groups` | `GroupRates` of the first division of users, and k | one value |
    | `item_groups` | `GroupRates` of the first division of items, and k | one value |

    A function of rankings may return values and weights, as one of pairs does; the mean is then a weighted one. A user
    for whom the value is nan is left out of the mean. Functions work on tensors of any device and read nothing
    from it.

    Args:
        name: What to call it; results have it in lower case.
        kind: What the function is given.
        smaller: Whether a smaller value is a better one.
        needs_item_counts: Whether `ranking.catalogue.item_counts` has to be there.
        rates_positives: Whether it can be told for some positives only, as a breakdown by items does.
        requires: What else it needs to know: `item_counts`, `item_categories`, `item_vectors`, `history` or
            `relevance`; without it an evaluation does not begin.
        first_stage: Whether its lists have the lengths of `first_stage`, and not of `topk`.
        replace: Whether a metric of the same name makes way; without it that is an error, unless the same function is
            defined again, as in a notebook.

    Raises:
        ConfigError: The name is taken, or the kind is none, or nobody can give what it requires.
    """
    if kind not in FUNCTIONS:
        raise ConfigError(f"metric {name!r}: kind={kind!r} is none of {list(FUNCTIONS)}")
    unknown = [one for one in requires if one not in REQUIREMENTS]
    if unknown:
        raise ConfigError(f"metric {name!r}: requires={unknown[0]!r} is none of {list(REQUIREMENTS)}")
    if not name or "@" in name:
        raise ConfigError(f"a metric cannot be called {name!r}: a name has letters, and no '@', which stands before k")

    groups = [kind] if kind in ("user_groups", "item_groups") else []
    wanted = tuple(dict.fromkeys([*(["item_counts"] if needs_item_counts else []), *groups, *requires]))

    def add(function: Function) -> Function:
        made = Metric(name, kind, function, smaller, "item_counts" in wanted, rates_positives)
        add_metric(dataclasses.replace(made, requires=wanted, first_stage=first_stage), replace=replace)
        return function

    return add


def add_metric(metric: Metric, *, replace: bool = False) -> None:
    """Make a metric known by its name.

    Raises:
        ConfigError: The name is taken by another one, which is not to make way.
    """
    taken = metric.key in _metrics and not _same(_metrics[metric.key].function, metric.function)
    if taken and not replace:
        raise ConfigError(
            f"there is a metric {_metrics[metric.key].name!r} already; choose another name, or replace=True"
        )
    _metrics[metric.key] = metric


def _same(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Return whether two functions are one that was defined twice."""
    return (one.__module__, one.__qualname__) == (other.__module__, other.__qualname__)


def find_metric(name: str) -> Metric:
    """Return the metric called `name`, in any case.

    Raises:
        ConfigError: There is none; the message names the nearest.
    """
    found = _metrics.get(str(name).lower())
    if found is None:
        near = did_you_mean(str(name).lower(), _metrics)
        raise ConfigError(f"there is no metric {name!r}{near or f'; there are {metric_names()}'}")
    return found


def metric_names() -> list[str]:
    """Return the names of all metrics, sorted."""
    return sorted(metric.name for metric in _metrics.values())


# Metrics of ranked lists: a value for each user, from where the positives stand in the list


@register_metric("Hit")
def hit(ranking: Ranking, k: int) -> Tensor:
    """1 if any of the first k items is a positive, else 0."""
    return ranking.hits[:, :k].any(dim=1).double()


@register_metric("MRR")
def mrr(ranking: Ranking, k: int) -> Tensor:
    """1 / j for the first hit at rank j <= k, 0 without one."""
    return (ranking.at(k) / ranks(ranking, k)).amax(dim=1)


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
    precisions = hits.cumsum(dim=1) / ranks(ranking, k)
    return (hits * precisions).sum(dim=1) / ranking.positives.clamp(max=k)


@register_metric("NDCG")
def ndcg(ranking: Ranking, k: int) -> Tensor:
    """Sum of h_j / log2(j + 1), divided by what min(k, R) hits at the first ranks would give.

    With binary gains (Järvelin and Kekäläinen, "Cumulated gain-based evaluation of IR techniques", 2002).
    """
    discounts = 1 / (ranks(ranking, k) + 1).log2()
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
    return mean_over_items(ranking, k, ranking.catalogue.item_counts)


@register_metric("TailPercentage", needs_item_counts=True, rates_positives=False)
def tail_percentage(ranking: Ranking, k: int) -> Tensor:
    """The share of the first k items that are in the long tail."""
    assert ranking.catalogue.tail is not None
    return mean_over_items(ranking, k, ranking.catalogue.tail)


def ranks(ranking: Ranking, k: int) -> Tensor:
    """Return the ranks from 1 to k, in float64."""
    return torch.arange(1, k + 1, dtype=torch.float64, device=ranking.hits.device)


def mean_over_items(ranking: Ranking, k: int, values: Tensor) -> Tensor:
    """Return the mean of `values` over the recommended items; nan for a user who gets none."""
    items = ranking.items[:, :k]
    there = items != NO_ITEM
    picked = values.double()[items.clamp(min=0)] * there
    return picked.sum(dim=1) / there.sum(dim=1)


# Metrics of the recommendations as a whole: how they spread over the items


@register_metric("ItemCoverage", kind="catalogue")
def item_coverage(counts: Tensor, k: int) -> Tensor:
    """The share of all items that are recommended to anybody."""
    return (counts > 0).double().mean()


@register_metric("GiniIndex", kind="catalogue", smaller=True)
def gini_index(counts: Tensor, k: int) -> Tensor:
    """How unevenly items are recommended: 0 if all alike, near 1 if few get everything.

    Sum of (2 i - n - 1) c_i / (n sum of c), with the counts c_1 <= ... <= c_n of all n items, those that nobody is
    recommended included.
    """
    ordered = counts.sort().values.double()
    number = ordered.numel()
    places = torch.arange(1, number + 1, dtype=torch.float64, device=counts.device)
    return ((2 * places - number - 1) * ordered).sum() / (number * ordered.sum())


@register_metric("ShannonEntropy", kind="catalogue")
def shannon_entropy(counts: Tensor, k: int) -> Tensor:
    """The entropy of the recommended item, in nats: minus the sum of p ln p."""
    shares = counts.double() / counts.sum()
    return torch.nansum(-shares * shares.log())


# Metrics of scores whose true labels are known, over all rows together


SMALLEST = 1e-15
"""How near to 0 and 1 a probability may come before its logarithm is taken."""


@register_metric("AUC", kind="labelled")
def auc(rows: LabelledRows) -> Tensor:
    """The probability that a random positive has a higher score than a random negative; a tie is half.

    This is the area under the ROC curve, counted exactly.
    """
    _check_binary(rows, "AUC")
    positive = rows.labels > 0.5
    ordered = rows.scores[~positive].sort().values
    scores = rows.scores[positive]
    if not len(ordered) or not len(scores):
        raise DataError(
            f"AUC needs positives and negatives; there are {len(scores)} and {len(ordered)}; look at the labels, or at "
            "the threshold that made them"
        )
    below = torch.searchsorted(ordered, scores).sum()
    up_to = torch.searchsorted(ordered, scores, right=True).sum()
    return (below + up_to).double() / (2 * len(scores) * len(ordered))


@register_metric("LogLoss", kind="labelled", smaller=True)
def log_loss(rows: LabelledRows) -> Tensor:
    """The mean of -log of the probability that was given to what happened."""
    _check_binary(rows, "LogLoss")
    if rows.logits:
        return torch.nn.functional.binary_cross_entropy_with_logits(rows.scores, rows.labels)
    least, most = float(rows.scores.min()), float(rows.scores.max())
    if least < 0 or most > 1:
        raise DataError(
            f"LogLoss takes probabilities, but scores go from {least:.4g} to {most:.4g}; pass logits=True if a sigmoid "
            "makes them probabilities, or apply it in the model's predict"
        )
    likely = rows.scores.clamp(SMALLEST, 1 - SMALLEST)
    return -(rows.labels * likely.log() + (1 - rows.labels) * torch.log1p(-likely)).mean()


@register_metric("MAE", kind="labelled", smaller=True)
def mae(rows: LabelledRows) -> Tensor:
    """The mean absolute difference between score and label."""
    return (rows.scores - rows.labels).abs().mean()


@register_metric("RMSE", kind="labelled", smaller=True)
def rmse(rows: LabelledRows) -> Tensor:
    """The root of the mean squared difference between score and label."""
    return (rows.scores - rows.labels).square().mean().sqrt()


def ordered_pairs(rows: LabelledRows) -> OrderedPairs:
    """Return, for each user with rows, how many pairs of a positive and a negative are in order."""
    _check_binary(rows, "GAUC")
    if rows.users is None:
        raise DataError("GAUC needs to know whose row is whose; pass users with the scores and labels")
    users = torch.unique(rows.users, return_inverse=True)[1]
    by_score = rows.scores.argsort(stable=True)
    order = by_score[users[by_score].argsort(stable=True)]
    users, scores, positive = users[order], rows.scores[order], rows.labels[order] > 0.5
    run = _runs(users, scores)
    number = int(users[-1]) + 1 if len(users) else 0
    negatives = _sums(run, (~positive).double(), int(run[-1]) + 1 if len(run) else 0)
    total = _sums(users, (~positive).double(), number)
    below = negatives.cumsum(0) - negatives
    first = total.cumsum(0) - total
    wins = torch.where(positive, below[run] + negatives[run] / 2 - first[users], 0.0)
    return OrderedPairs(_sums(users, wins, number), _sums(users, positive.double(), number), total)


def _runs(users: Tensor, scores: Tensor) -> Tensor:
    """Number the stretches in which neither user nor score changes."""
    changed = torch.zeros_like(users)
    changed[1:] = ((users[1:] != users[:-1]) | (scores[1:] != scores[:-1])).long()
    return changed.cumsum(0)


def _sums(places: Tensor, values: Tensor, number: int) -> Tensor:
    return values.new_zeros(number).index_add_(0, places, values)


def _check_binary(rows: LabelledRows, name: str) -> None:
    other = rows.labels[(rows.labels != 0) & (rows.labels != 1)]
    if len(other):
        raise DataError(f"{name} needs labels 0 and 1, but a label is {float(other[0]):.4g}; set a threshold for them")
