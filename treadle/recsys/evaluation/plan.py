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
        self.topk = _cutoffs(topk, num_items - first_item, self.metrics)
        self.catalogue = _catalogue(self.metrics, num_items, first_item, item_counts, tail_ratio)
        self.gauc_weight, self.decimals = gauc_weight, decimals
        self.measures = [
            Measure(metric, k) for metric in self.metrics for k in (self.topk if metric.has_cutoff else (0,))
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
        return max(self.topk, default=0)

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


def _cutoffs(topk: int | Sequence[int], size: int, metrics: list[Metric]) -> tuple[int, ...]:
    if not any(metric.uses_lists for metric in metrics):
        return ()
    if size < 1:
        named = [metric.name for metric in metrics if metric.uses_lists]
        raise ConfigError(f"{named} rank items; pass num_items, the number of item ids")
    given = [topk] if isinstance(topk, int) else list(topk)
    for k in given:
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise ConfigError(f"topk={topk}: {k!r} is no length of a list; give whole numbers from 1 on")
        if k > size:
            raise ConfigError(f"topk={topk}: {k} is more than the {size} items there are; choose a smaller k")
    if not given:
        raise ConfigError("topk is empty; give the k of the metrics, such as 10")
    return tuple(dict.fromkeys(given))


def _catalogue(
    metrics: list[Metric], num_items: int, first_item: int, item_counts: Tensor | None, tail_ratio: float
) -> Catalogue:
    needing = [metric.name for metric in metrics if metric.needs_item_counts]
    if item_counts is None:
        if needing:
            raise ConfigError(f"{needing} look at how often items were used in training; pass item_counts")
        return Catalogue(num_items, first_item)
    if item_counts.shape != (num_items,):
        shape = tuple(item_counts.shape)
        raise ConfigError(f"item_counts has the shape {shape}; give one for each of {num_items} item ids")
    return Catalogue(num_items, first_item, item_counts, _tail(item_counts, first_item, tail_ratio))


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
