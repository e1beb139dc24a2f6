"""Whether one run is better than another, or only luckier: paired tests over users."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from treadle.data.seeds import fold_seed
from treadle.errors import ConfigError, DataError, check_choice
from treadle.recsys.evaluation.result import PerUser

NUMBERS_AT_ONCE = 2**22
"""How many random numbers are held at a time."""


@dataclass(frozen=True)
class Comparison:
    """How the second of two runs differs from the first in one metric.

    Attributes:
        metric: Which one.
        users: Over how many users, the same in both.
        first: The mean of the first run.
        second: The mean of the second run.
        difference: `second - first`.
        t: Student's t of the differences.
        t_test: The probability of so large a difference by chance, by the paired t-test.
        permutation_test: The same by exchanging the runs at random for each user, which assumes no distribution.
        interval: Between which values the difference lies, by the bootstrap over users.
        adjusted: The probability of `test` with regard to how many comparisons were made, by `correction`.
        wilcoxon: The probability by Wilcoxon's signed-rank test, which looks at the order of the differences.
        sign_test: The probability by the sign test, which looks at which run is better for how many users.
        wins: For how many users the second run is better, and for how many the first is.
        runs: What the two runs are called.
        test: Whose probability is adjusted.
        correction: How it is adjusted; see `adjust`.
    """

    metric: str
    users: int
    first: float
    second: float
    difference: float
    t: float
    t_test: float
    permutation_test: float
    interval: tuple[float, float]
    adjusted: float
    wilcoxon: float = math.nan
    sign_test: float = math.nan
    wins: tuple[int, int] = (0, 0)
    runs: tuple[str, str] = ("first", "second")
    test: str = "permutation_test"
    correction: str = "holm"

    def __str__(self) -> str:
        low, high = self.interval
        named = "" if self.runs == ("first", "second") else f"{self.runs[0]} -> {self.runs[1]}, "
        return (
            f"{named}{self.metric}: {self.first:.4f} -> {self.second:.4f} ({self.difference:+.4f}, between {low:+.4f} "
            f"and {high:+.4f}), {self.users} users, {self.wins[0]} better and {self.wins[1]} worse, "
            f"p = {self.t_test:.4g} (t-test), {self.permutation_test:.4g} (permutations), {self.wilcoxon:.4g} "
            f"(Wilcoxon), {self.sign_test:.4g} (signs), {self.adjusted:.4g} (adjusted by {self.correction})"
        )


@dataclass(frozen=True)
class Interval:
    """The mean of a metric over users, and between which values it lies when other users are drawn.

    Attributes:
        mean: The mean.
        low, high: The edges.
        users: Over how many users.
    """

    mean: float
    low: float
    high: float
    users: int


def mean_intervals(
    run: PerUser,
    metrics: Sequence[str] | None = None,
    *,
    resamples: int = 10_000,
    confidence: float = 0.95,
    seed: int = 0,
) -> dict[str, Interval]:
    """Return between which values the mean of each metric of one run lies, by the bootstrap over users.

    Two runs whose intervals overlap may still differ for sure, since both have the same users: see `compare_runs`.

    Args:
        run: The values of a run, from an evaluation with `keep_per_user=True`.
        metrics: Which ones; by default all.
        resamples: How many times users are drawn at random.
        confidence: How much of the means the interval holds.
        seed: Which random numbers; runs with one seed draw the same users.

    Raises:
        ConfigError: `resamples` or `confidence` cannot be meant.
        DataError: A metric has no values.
    """
    _check_options(resamples, confidence)
    found = {}
    for name in list(run.values) if metrics is None else metrics:
        values = run[name].cpu().double()
        there = values[~values.isnan()]
        if not len(there):
            raise DataError(f"{name} has no value of any user")
        low, high = bootstrap_interval(there, resamples, confidence, seed)
        found[name.lower()] = Interval(float(there.mean()), low, high, len(there))
    return found


TESTS = ("permutation_test", "t_test", "wilcoxon", "sign_test")
"""Tests of two runs whose probability can be adjusted."""


def compare_models(
    runs: Mapping[str, PerUser],
    metrics: Sequence[str] | None = None,
    *,
    baseline: str | None = None,
    test: str = "permutation_test",
    correction: str = "holm",
    resamples: int = 10_000,
    confidence: float = 0.95,
    seed: int = 0,
) -> list[Comparison]:
    """Return how several runs differ, two at a time, with probabilities adjusted for all comparisons together.

    Args:
        runs: The values of each run by its name, of the same users.
        metrics: Which ones; by default all that two runs both have.
        baseline: The run that each other one is compared with; by default each is compared with each.
        test: Whose probability is adjusted.
        correction: How; see `adjust`.
        resamples, confidence, seed: As for `compare_runs`.

    Raises:
        ConfigError: An option cannot be meant, or there is no such baseline.
        DataError: The users or the splits differ.
    """
    names = list(runs)
    if len(names) < 2 or (baseline is not None and baseline not in names):
        wanted = "two runs at least" if len(names) < 2 else f"baseline={baseline!r} among them"
        raise ConfigError(f"models are compared with each other, and these are {names}; give {wanted}")
    pairs = list(combinations(names, 2))
    if baseline is not None:
        pairs = [(baseline, other) for other in names if other != baseline]
    options: dict[str, Any] = {"resamples": resamples, "confidence": confidence, "seed": seed, "test": test}
    found = []
    for first, second in pairs:
        both = compare_runs(runs[first], runs[second], metrics, **options).values()
        found += [replace(one, runs=(first, second)) for one in both]
    return _adjusted(found, test, correction)


def compare_runs(
    first: PerUser,
    second: PerUser,
    metrics: Sequence[str] | None = None,
    *,
    resamples: int = 10_000,
    confidence: float = 0.95,
    seed: int = 0,
    test: str = "permutation_test",
    correction: str = "holm",
) -> dict[str, Comparison]:
    """Return how two runs differ, by metric; both are evaluations of the same users on the same split.

    All tests are two-sided. A user whom a metric leaves out in either run is left out of its comparison.

    Args:
        first: The values of the run to compare with, from an evaluation with `keep_per_user=True`.
        second: The values of the other run.
        metrics: Which ones; by default all that both have.
        resamples: How many times users are drawn, and runs exchanged, at random.
        confidence: How much of the bootstrap's differences the interval holds.
        seed: Which random numbers.
        test: Whose probability is adjusted for the number of metrics, of `TESTS`.
        correction: How; see `adjust`.

    Raises:
        ConfigError: An option cannot be meant.
        DataError: The users or the splits differ, or there are fewer than two users.
    """
    _check_options(resamples, confidence)
    check_choice("test", test, TESTS)
    check_choice("correction", correction, CORRECTIONS)
    if not torch.equal(first.users.cpu(), second.users.cpu()):
        raise DataError(
            f"runs are compared user by user, but the first was evaluated on {len(first.users)} users and the second "
            f"on {len(second.users)}, not the same ones; evaluate both on one split"
        )
    _check_split(first, second)
    names = [name for name in first.values if name in second.values] if metrics is None else list(metrics)
    found = [
        _compare(name, first[name].cpu(), second[name].cpu(), resamples, confidence, fold_seed(seed, name.lower()))
        for name in names
    ]
    return {one.metric: one for one in _adjusted(found, test, correction)}


def _check_options(resamples: int, confidence: float) -> None:
    if resamples < 1 or not 0 < confidence < 1:
        raise ConfigError(f"resamples={resamples}, confidence={confidence}: give a number from 1 on, and one in (0, 1)")


def _check_split(first: PerUser, second: PerUser) -> None:
    """Raise if two runs were evaluated on two splits of the same users, as far as that is known."""
    if not first.split or not second.split:
        return
    names = list(dict.fromkeys([*first.split, *second.split]))
    other = [name for name in names if first.split.get(name) != second.split.get(name)]
    if other:
        raise DataError(
            f"the runs were evaluated on two splits of the same users, which differ in {' and '.join(other)}; evaluate "
            "both on one split (one split_seed, and the same eval_args)"
        )


def _compare(name: str, first: Tensor, second: Tensor, resamples: int, confidence: float, seed: int) -> Comparison:
    there = ~(first.isnan() | second.isnan())
    first, second = first[there], second[there]
    if len(first) < 2:
        raise DataError(f"{name} has values of {len(first)} users in both runs; a comparison needs at least two")
    differences = second - first
    t, p = paired_t_test(differences)
    return Comparison(
        name.lower(),
        len(first),
        float(first.mean()),
        float(second.mean()),
        float(differences.mean()),
        t,
        p,
        permutation_test(differences, resamples, seed),
        bootstrap_interval(differences, resamples, confidence, seed),
        p,
        wilcoxon_test(differences),
        sign_test(differences),
        (int((differences > 0).sum()), int((differences < 0).sum())),
    )


def paired_t_test(differences: Tensor) -> tuple[float, float]:
    """Return Student's t of differences, and the probability of one at least as far from 0.

    >>> t, p = paired_t_test(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    >>> round(t, 6), round(p, 6)
    (3.464102, 0.07418)
    """
    values = differences.double()
    spread, mean = float(values.std()), float(values.mean())
    if not spread:
        return (math.copysign(math.inf, mean), 0.0) if mean else (0.0, 1.0)
    t = mean / (spread / math.sqrt(len(values)))
    freedom = len(values) - 1
    return t, incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


def permutation_test(differences: Tensor, resamples: int, seed: int) -> float:
    """Return how often a random exchange of the two runs, user by user, gives a mean at least as far from 0.

    The exchange that was observed counts as one of them, so that the answer is never 0.
    """
    values = differences.double()
    values = values[values != 0]
    observed = float(values.sum().abs()) * (1 - 1e-12)
    generator = torch.Generator().manual_seed(fold_seed(seed, "permutation"))
    as_far = 0
    for rounds in _blocks(resamples, len(values)):
        signs = torch.randint(0, 2, (rounds, len(values)), generator=generator, dtype=torch.int8).double() * 2 - 1
        as_far += int(((signs @ values).abs() >= observed).sum())
    return (as_far + 1) / (resamples + 1)


EXACT = 50
"""Up to how many differences all signs are tried in Wilcoxon's test; beyond, their sum is as good as normal."""


def wilcoxon_test(differences: Tensor) -> float:
    """Return the probability of so one-sided an order of differences by chance: Wilcoxon's signed-rank test.

    Differences of 0 are left out, equal ones share their ranks. Of few differences all signs are counted, of many the
    normal distribution with regard to ties is taken.

    >>> wilcoxon_test(torch.tensor([1.0, 2.0, 3.0, -4.0, 5.0]))
    0.4375
    """
    values = differences.double()
    values = values[values != 0]
    number = len(values)
    if not number:
        return 1.0
    _, place, counts = torch.unique(values.abs(), return_inverse=True, return_counts=True)
    # Twice the ranks, which are whole numbers also where some share one.
    ranks = (2 * counts.cumsum(0) - counts + 1)[place]
    above = int(ranks[values > 0].sum())
    if number <= EXACT:
        return _exact_signed_ranks(ranks.tolist(), above)
    middle = number * (number + 1) / 4
    cubes = float((counts.double() ** 3 - counts).sum())
    spread = math.sqrt(number * (number + 1) * (2 * number + 1) / 24 - cubes / 48)
    return math.erfc(abs(above / 2 - middle) / spread / math.sqrt(2))


def _exact_signed_ranks(ranks: Sequence[int], above: int) -> float:
    """Return how many of all signs give a sum of ranks at least as far from the middle, as a share."""
    ways = torch.zeros(sum(ranks) + 1, dtype=torch.float64)
    ways[0] = 1
    for rank in ranks:
        ways[rank:] += ways[:-rank].clone()
    low = min(above, sum(ranks) - above)
    return min(1.0, 2 * float(ways[: low + 1].sum() / ways.sum()))


def sign_test(differences: Tensor) -> float:
    """Return the probability that one run is better for so many users by chance; who has no difference is left out.

    >>> sign_test(torch.tensor([1.0, 2.0, 3.0, -4.0, 5.0, 0.0]))
    0.375
    """
    better, worse = int((differences > 0).sum()), int((differences < 0).sum())
    few, number = min(better, worse), better + worse
    if 2 * few == number:
        return 1.0
    return round(min(1.0, 2 * incomplete_beta(number - few, few + 1, 0.5)), 15)


def bootstrap_interval(differences: Tensor, resamples: int, confidence: float, seed: int) -> tuple[float, float]:
    """Return between which values the mean lies when users are drawn anew, with replacement."""
    values = differences.double()
    generator = torch.Generator().manual_seed(fold_seed(seed, "bootstrap"))
    means = [
        values[torch.randint(0, len(values), (rounds, len(values)), generator=generator)].mean(dim=1)
        for rounds in _blocks(resamples, len(values))
    ]
    edges = torch.tensor([(1 - confidence) / 2, (1 + confidence) / 2], dtype=torch.float64)
    low, high = torch.quantile(torch.cat(means), edges).tolist()
    return low, high


def incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta function, by its continued fraction.

    The fraction (Abramowitz and Stegun, 26.5.8) is evaluated from the front, and for the smaller of the two tails,
    where it converges fast.

    >>> round(incomplete_beta(2.0, 3.0, 0.4), 12)
    0.5248
    """
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(b, a, 1 - x)
    front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(front) / a / _beta_fraction(a, b, x)


def _beta_fraction(a: float, b: float, x: float) -> float:
    numerator, denominator, value = 1.0, 0.0, 1.0
    for term in range(1, 1000):
        half = term // 2
        if term % 2:
            factor = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1))
        else:
            factor = half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))
        denominator = 1 / ((1 + factor * denominator) or 1e-300)
        numerator = (1 + factor / numerator) or 1e-300
        change = numerator * denominator
        value *= change
        if abs(change - 1) < 1e-15:
            break
    return value


def _blocks(number: int, width: int) -> list[int]:
    step = max(1, NUMBERS_AT_ONCE // max(width, 1))
    return [min(step, number - start) for start in range(0, number, step)]


CORRECTIONS = ("holm", "bonferroni", "benjamini-hochberg", "none")
"""How probabilities are adjusted for how many comparisons there are."""


def adjust(values: Sequence[float], correction: str = "holm") -> list[float]:
    """Return probabilities adjusted for how many there are, in the given order.

    `holm` and `bonferroni` bound the chance that any of the comparisons is wrongly taken for a difference, and Holm's
    is never the worse one (Holm, "A simple sequentially rejective multiple test procedure", 1979); `benjamini-hochberg`
    bounds the share of wrong ones among those that are taken for differences (1995).

    >>> [round(value, 3) for value in adjust([0.01, 0.04, 0.03], "bonferroni")]
    [0.03, 0.12, 0.09]

    Raises:
        ConfigError: There is no such correction.
    """
    check_choice("correction", correction, CORRECTIONS)
    number = len(values)
    if correction == "none":
        return list(values)
    if correction == "bonferroni":
        return [min(1.0, number * value) for value in values]
    adjusted = [0.0] * number
    order = sorted(range(number), key=values.__getitem__)
    bound = 0.0 if correction == "holm" else 1.0
    if correction == "holm":
        for rank, place in enumerate(order):
            adjusted[place] = bound = max(bound, min(1.0, (number - rank) * values[place]))
        return adjusted
    for rank, place in reversed(list(enumerate(order, start=1))):
        adjusted[place] = bound = min(bound, number / rank * values[place])
    return adjusted


def _adjusted(found: Sequence[Comparison], test: str, correction: str) -> list[Comparison]:
    values = adjust([getattr(one, test) for one in found], correction)
    return [
        replace(one, adjusted=value, test=test, correction=correction) for one, value in zip(found, values, strict=True)
    ]
