"""Every metric by its definition, in plain Python: slow, and easy to check by eye."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

Lists = dict[int, list[int]]


@dataclass(frozen=True)
class Case:
    """An evaluation as dictionaries: candidates with their scores, and positives, by user."""

    scores: dict[int, dict[int, float]]
    positives: Lists
    num_items: int
    first_item: int
    item_counts: list[int]
    tail_ratio: float = 0.1

    @property
    def users(self) -> list[int]:
        """Those who have a positive."""
        return sorted(user for user, own in self.positives.items() if own)

    def ranked(self, user: int, k: int) -> list[int]:
        """The k best candidates; of equal scores the lower id first."""
        scores = self.scores[user]
        return sorted(scores, key=lambda item: (-scores[item], item))[:k]

    def hits(self, user: int, k: int) -> list[int]:
        return [int(item in self.positives[user]) for item in self.ranked(user, k)]

    def tail(self) -> set[int]:
        items = range(self.first_item, self.num_items)
        if self.tail_ratio > 1:
            return {item for item in items if self.item_counts[item] <= self.tail_ratio}
        rarest = sorted(items, key=lambda item: (self.item_counts[item], item))
        return set(rarest[: max(int(len(items) * self.tail_ratio), 1)])


def hit(case: Case, user: int, k: int) -> float:
    return float(any(case.hits(user, k)))


def mrr(case: Case, user: int, k: int) -> float:
    return max((1 / rank for rank, found in enumerate(case.hits(user, k), 1) if found), default=0.0)


def recall(case: Case, user: int, k: int) -> float:
    return sum(case.hits(user, k)) / len(case.positives[user])


def precision(case: Case, user: int, k: int) -> float:
    return sum(case.hits(user, k)) / k


def average_precision(case: Case, user: int, k: int) -> float:
    hits = case.hits(user, k)
    total = sum(sum(hits[:rank]) / rank for rank, found in enumerate(hits, 1) if found)
    return total / min(k, len(case.positives[user]))


def ndcg(case: Case, user: int, k: int) -> float:
    gain = sum(1 / math.log2(rank + 1) for rank, found in enumerate(case.hits(user, k), 1) if found)
    return gain / sum(1 / math.log2(rank + 1) for rank in range(1, min(k, len(case.positives[user])) + 1))


def average_popularity(case: Case, user: int, k: int) -> float:
    shown = case.ranked(user, k)
    return sum(case.item_counts[item] for item in shown) / len(shown) if shown else math.nan


def tail_percentage(case: Case, user: int, k: int) -> float:
    shown, tail = case.ranked(user, k), case.tail()
    return sum(item in tail for item in shown) / len(shown) if shown else math.nan


BY_USER: dict[str, Callable[[Case, int, int], float]] = {
    "Hit": hit,
    "MRR": mrr,
    "Recall": recall,
    "Precision": precision,
    "MAP": average_precision,
    "NDCG": ndcg,
    "AveragePopularity": average_popularity,
    "TailPercentage": tail_percentage,
}


def recommended(case: Case, k: int) -> list[int]:
    counts = Counter(item for user in case.users for item in case.ranked(user, k))
    return [counts[item] for item in range(case.first_item, case.num_items)]


def item_coverage(case: Case, k: int) -> float:
    return sum(count > 0 for count in recommended(case, k)) / (case.num_items - case.first_item)


def gini_index(case: Case, k: int) -> float:
    """Half the mean absolute difference between two items, by their mean: another way to write it."""
    counts = recommended(case, k)
    apart = sum(abs(one - two) for one in counts for two in counts)
    return apart / (2 * len(counts) * sum(counts))


def shannon_entropy(case: Case, k: int) -> float:
    counts = [count for count in recommended(case, k) if count]
    return -sum(count / sum(counts) * math.log(count / sum(counts)) for count in counts)


OF_CATALOGUE: dict[str, Callable[[Case, int], float]] = {
    "ItemCoverage": item_coverage,
    "GiniIndex": gini_index,
    "ShannonEntropy": shannon_entropy,
}


def area(scores: list[float], labels: list[int]) -> float:
    """The share of pairs of a positive and a negative that are in order; a tie is half."""
    above = [score for score, label in zip(scores, labels, strict=True) if label]
    below = [score for score, label in zip(scores, labels, strict=True) if not label]
    if not above or not below:
        return math.nan
    return sum((one > two) + (one == two) / 2 for one in above for two in below) / (len(above) * len(below))


def gauc(case: Case, weight: str = "impressions") -> float:
    total = weights = 0.0
    for user in case.users:
        items = case.scores[user]
        own = area(list(items.values()), [int(item in case.positives[user]) for item in items])
        if not math.isnan(own):
            size = len(items) if weight == "impressions" else len(case.positives[user])
            total, weights = total + size * own, weights + size
    return total / weights if weights else math.nan


def mean(values: list[float]) -> float:
    there = [value for value in values if not math.isnan(value)]
    return sum(there) / len(there) if there else math.nan


def evaluate(case: Case, topk: list[int]) -> dict[str, float]:
    """Return every metric by the name that results have for it."""
    found = {
        f"{name.lower()}@{k}": mean([metric(case, user, k) for user in case.users])
        for name, metric in BY_USER.items()
        for k in topk
    }
    found |= {f"{name.lower()}@{k}": metric(case, k) for name, metric in OF_CATALOGUE.items() for k in topk}
    return found | {"gauc": gauc(case)}
