"""Which metrics an evaluation calculates, checked before it does any work."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from treadle.errors import ConfigError, UnknownMetricError, did_you_mean
from treadle.recsys.evaluation.inputs import Catalogue
from treadle.recsys.evaluation.metrics import Kind, Metric, find_metric


class Measure(NamedTuple):
    """A metric, and the k it is cut off at; 0 if it has none."""

    metric: Metric
    k: int

    @property
    def key(self) -> str:
        """What the result calls it, such as `recall@10`."""
        return f"{self.metric.key}@{self.k}" if self.k else self.metric.key


class MetricPlan:
    """The metrics to calculate, and what they need to know about the items.

    Args:
        metrics: Names, in any case: `["Recall", "NDCG"]`.
        topk: Where ranked lists are cut off, one or several.
        num_items: How many item ids there are, padding included; not needed for metrics of labels alone.
        first_item: The lowest id that is an item; those below are padding.
        item_counts: How often each item was used in training, one for each id; some metrics need it.
        tail_ratio: What `TailPercentage` calls the long tail: up to 1, this share of all items, those used least in
            training; above 1, the items used at most so often.
        gauc_weight: What users weigh by in `GAUC`.
        item_categories: Which categories each item has, `[num_items, categories]`, 0 or 1.
        item_vectors: What tells items apart, a vector for each id; by default their categories do.
        first_stage: The lengths of the lists of `FirstStageRecall`.
        decimals: To how many decimals `EvaluationResult.rounded` rounds.
        config: The settings, which metrics that are classes are made of.
        facts: What is known of the data by RecBole's names, such as `data.num_items`, for such metrics.

    Raises:
        ConfigError: A metric is unknown, or misses what it needs; a k is not positive, or above the number of items.
    """

    def __init__(
        self,
        metrics: str | Sequence[str],
        topk: int | Sequence[int] = 10,
        *,
        num_items: int = 0,
        first_item: int = 1,
        item_counts: Tensor | None = None,
        tail_ratio: float = 0.1,
        gauc_weight: Literal["impressions", "positives"] = "impressions",
        item_categories: Tensor | None = None,
        item_vectors: Tensor | None = None,
        first_stage: int | Sequence[int] = 100,
        decimals: int = 4,
        config: Any = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self.config, self.facts = config, dict(facts or {})
        named = [metrics] if isinstance(metrics, str) else list(metrics)
        self.metrics = list(dict.fromkeys(find_metric(name) for name in named))
        if not self.metrics:
            raise ConfigError("metrics is empty; name at least one, such as 'NDCG'")
        if gauc_weight not in ("impressions", "positives"):
            raise ConfigError(f"gauc_weight={gauc_weight!r}: users weigh by 'impressions' or by 'positives'")
        ranking = [metric for metric in self.metrics if metric.uses_lists]
        size, staged = num_items - first_item, [metric for metric in ranking if metric.first_stage]
        self.topk = _cutoffs("topk", topk, size, [metric for metric in ranking if not metric.first_stage])
        self.first_stage = _cutoffs("first_stage", first_stage, size, staged)
        known = {"item_counts": item_counts, "item_categories": item_categories}
        known["item_vectors"] = item_categories if item_vectors is None else item_vectors
        for name, tensor in known.items():
            self._check_known(name, tensor, num_items)
        unused = [name for name in ("item_categories", "item_vectors") if not self.requiring(name)]
        self.catalogue = _catalogue(num_items, first_item, known | dict.fromkeys(unused), tail_ratio)
        self.gauc_weight, self.decimals = gauc_weight, decimals
        self.measures = [
            Measure(metric, k) for metric in self.metrics for k in metric.cutoffs(self.topk, self.first_stage)
        ]

    @property
    def keys(self) -> list[str]:
        """The names of all values, in the order in which results have them."""
        return [measure.key for measure in self.measures]

    @property
    def needs_pairs(self) -> bool:
        """Whether it must be known how many positives stand above how many negatives."""
        return any(one.metric.kind == "pairs" or "rec.meanrank" in one.metric.needs for one in self.measures)

    @property
    def longest(self) -> int:
        """How long the ranked lists have to be; 0 if no metric looks at them."""
        return max((*self.topk, *self.first_stage), default=0)

    def requiring(self, name: str) -> list[str]:
        """Return the metrics that need to know something beside the ranking, such as `history`."""
        return [metric.name for metric in self.metrics if name in metric.requires]

    def check_given(self, **given: Any) -> None:
        """Make sure that an evaluation is given what the metrics need to know of users and positives."""
        for name, value in given.items():
            if self.requiring(name) and (value is None or (isinstance(value, Sequence) and not value)):
                raise ConfigError(f"{self.requiring(name)} {WHY[name]}")

    def _check_known(self, name: str, tensor: Tensor | None, num_items: int) -> None:
        """Make sure that what metrics need to know of items is there, for each of them."""
        needing = self.requiring(name)
        if tensor is None and needing:
            raise ConfigError(f"{needing} {WHY[name]}")
        if tensor is not None and len(tensor) != num_items:
            shape = tuple(tensor.shape)
            raise ConfigError(f"{name} has the shape {shape}; give one for each of {num_items} item ids")

    def of_kind(self, *kinds: Kind) -> list[Measure]:
        """Return the measures of some kinds, in order."""
        return [measure for measure in self.measures if measure.metric.kind in kinds]

    def check_valid_metric(self, name: str) -> str:
        """Return the key of the metric that decides which model is best, such as `ndcg@10` for `NDCG@10`.

        Raises:
            UnknownMetricError: It is not calculated; the message names what is, and the nearest of it.
        """
        key = str(name).lower().replace(" ", "")
        if key not in self.keys:
            raise UnknownMetricError(
                f"valid_metric={name!r} is not among what the evaluation calculates, {self.keys}"
                f"{_missing_cutoff(key, self) or did_you_mean(key, self.keys)}"
            )
        return key

    def bigger_is_better(self, name: str) -> bool:
        """Return whether a higher value of the metric is the better one."""
        key = self.check_valid_metric(name)
        return not next(measure.metric.smaller for measure in self.measures if measure.key == key)

    def refuse(self, kinds: Iterable[Kind], place: str, instead: str) -> None:
        """Raise if a metric is of one of `kinds`, which `place` has no data for."""
        wrong = [measure.metric.name for measure in self.of_kind(*kinds)]
        if wrong:
            raise ConfigError(f"{place} cannot calculate {list(dict.fromkeys(wrong))}; {instead}")


WHY = {
    "item_counts": "look at how often items were used in training; pass item_counts",
    "item_categories": "look at the categories of items; pass item_categories",
    "item_vectors": "look at what tells items apart; pass item_categories or item_vectors",
    "history": "look at what users have in training; pass history",
    "relevance": "look at how much each positive is worth; pass relevance",
    "user_groups": "compare groups of users; pass user_groups",
    "item_groups": "compare groups of items; pass item_groups",
}
"""What is said of metrics that miss what they require."""


def _cutoffs(name: str, lengths: int | Sequence[int], size: int, ranking: list[Metric]) -> tuple[int, ...]:
    if not ranking:
        return ()
    if size < 1:
        raise ConfigError(f"{[metric.name for metric in ranking]} rank items; pass num_items, the number of item ids")
    given = [lengths] if isinstance(lengths, int) else list(lengths)
    for k in given:
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise ConfigError(f"{name}={lengths}: {k!r} is no length of a list; give whole numbers from 1 on")
        if k > size:
            raise ConfigError(f"{name}={lengths}: {k} is more than the {size} items there are; choose a smaller k")
    if not given:
        raise ConfigError(f"{name} is empty; give the k of the metrics, such as 10")
    return tuple(dict.fromkeys(given))


def _catalogue(num_items: int, first_item: int, known: Mapping[str, Tensor | None], tail_ratio: float) -> Catalogue:
    counts, categories, vectors = (known[name] for name in ("item_counts", "item_categories", "item_vectors"))
    tail = place = None
    if counts is not None:
        if counts.dim() != 1:
            raise ConfigError(f"item_counts has the shape {tuple(counts.shape)}; give one number for each item id")
        tail = _tail(counts, first_item, tail_ratio)
        place = torch.full_like(counts, num_items, dtype=torch.int64)
        order = counts[first_item:].argsort(stable=True, descending=True)
        place[first_item + order] = torch.arange(len(order), device=counts.device)
    if categories is not None:
        categories = _rows(categories, first_item, ord=1)
    return Catalogue(
        num_items,
        first_item,
        counts,
        tail,
        place,
        categories,
        None if vectors is None else _rows(vectors, first_item, ord=2),
    )


def _rows(table: Tensor, first_item: int, *, ord: int) -> Tensor:
    """Return the rows of items, each of length 1, and of zeros for padding and, in one more row, for no item."""
    rows = torch.cat([table.double(), table.new_zeros(1, table.shape[1]).double()])
    rows[:first_item] = 0
    return torch.nn.functional.normalize(rows, p=float(ord), dim=1)


def _tail(item_counts: Tensor, first_item: int, ratio: float) -> Tensor:
    """Return which items are the long tail; of items used equally often the lower id comes first."""
    if not ratio > 0:
        raise ConfigError(f"tail_ratio={ratio}: give a share of the items up to 1, or a number of uses above 1")
    counts = item_counts[first_item:]
    inside = torch.zeros_like(item_counts, dtype=torch.bool)
    if ratio > 1:
        inside[first_item:] = counts <= ratio
    else:
        rarest = counts.argsort(stable=True)[: max(int(len(counts) * ratio), 1)]
        inside[first_item + rarest] = True
    return inside


def _missing_cutoff(key: str, plan: MetricPlan) -> str:
    name, _, k = key.partition("@")
    known = [measure.k for measure in plan.measures if measure.metric.key == name]
    if not known:
        return ""
    if known == [0]:
        return f"; {name} has no cut-off: write {name!r}"
    return f"; add {k} to topk" if k.isdecimal() else f"; write '{name}@{known[0]}'"
