"""Whether one run is better than another, or only luckier: paired tests over users."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from treadle.data.seeds import fold_seed
from treadle.errors import ConfigError, DataError
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
        adjusted: `permutation_test` with regard to how many metrics were looked at (Holm, "A simple sequentially
            rejective multiple test procedure", 1979).
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

    def __str__(self) -> str:
        low, high = self.interval
        return (
            f"{self.metric}: {self.first:.4f} -> {self.second:.4f} ({self.difference:+.4f}, between {low:+.4f} and "
            f"{high:+.4f}), {self.users} users, p = {self.t_test:.4g} (t-test), {self.permutation_test:.4g} "
            f"(permutations), {self.adjusted:.4g} (adjusted)"
        )


def compare_runs(
    first: PerUser,
    second: PerUser,
    metrics: Sequence[str] | None = None,
    *,
    resamples: int = 10_000,
    confidence: float = 0.95,
    seed: int = 0,
) -> dict[str, Comparison]:
    """Return how two runs differ, by metric; both are evaluations of the same users.

    All tests are two-sided. A user whom a metric leaves out in either run is left out of its comparison.

    Args:
        first: The values of the run to compare with, from an evaluation with `keep_per_user=True`.
        second: The values of the other run.
        metrics: Which ones; by default all that both have.
        resamples: How many times users are drawn, and runs exchanged, at random.
        confidence: How much of the bootstrap's differences the interval holds.
        seed: Which random numbers.

    Raises:
        ConfigError: `resamples` or `confidence` cannot be meant.
        DataError: The users differ, or are fewer than two.
    """
    if resamples < 1 or not 0 < confidence < 1:
        raise ConfigError(f"resamples={resamples}, confidence={confidence}: give a number from 1 on, and one in (0, 1)")
    if not torch.equal(first.users.cpu(), second.users.cpu()):
        raise DataError(
            f"runs are compared user by user, but the first was evaluated on {len(first.users)} users and the second "
            f"on {len(second.users)}, not the same ones; evaluate both on one split"
        )
    names = [name for name in first.values if name in second.values] if metrics is None else list(metrics)
    found = [
        _compare(name, first[name].cpu(), second[name].cpu(), resamples, confidence, fold_seed(seed, name.lower()))
        for name in names
    ]
    adjusted = _holm([one.permutation_test for one in found])
    return {one.metric: _with_adjusted(one, value) for one, value in zip(found, adjusted, strict=True)}


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


def _holm(values: Sequence[float]) -> list[float]:
    """Return probabilities adjusted for how many there are, in the given order."""
    adjusted, largest = [0.0] * len(values), 0.0
    for rank, place in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        largest = max(largest, min(1.0, (len(values) - rank) * values[place]))
        adjusted[place] = largest
    return adjusted


def _with_adjusted(one: Comparison, value: float) -> Comparison:
    return Comparison(**{**vars(one), "adjusted": value})
