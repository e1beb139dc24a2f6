"""Tests of numbers against chance; each says how often it is wrong about data that has no fault.

All of them are deterministic: what is drawn is drawn from generators of fixed seeds. Rates of false alarms are those
that `tests/tools/doctor/test_statistics.py` counts, on data drawn anew thousands of times.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

# Labels that come in another order than by chance


SORTED_Z = 6.0
"""Standard deviations from which on an order is not chance: less than one false alarm in 10,000 programs."""
SORTED_EFFECT = 0.4
"""How far from a shuffled order (0) to one class a batch (1) an order must be to matter."""


class Excess(NamedTuple):
    """How far something is beyond chance.

    Attributes:
        z: In standard deviations.
        effect: From 0, as by chance, to 1, as much as can be.
    """

    z: float
    effect: float


def label_excess(batches: Sequence[Tensor], elsewhere: Tensor) -> Excess:
    """Return how much more often than by chance two labels of one batch are the same.

    Args:
        batches: The labels of each batch.
        elsewhere: Labels from all over the data, which say how frequent each is.

    >>> label_excess([torch.tensor([0] * 8), torch.tensor([1] * 8)] * 4, torch.tensor([0, 1] * 50)).effect
    1.0
    """
    shares = torch.unique(elsewhere, return_counts=True)[1].double() / len(elsewhere)
    twice, thrice = float((shares**2).sum()), float((shares**3).sum())
    # Of a U-statistic of pairs: its variance has a part by samples, and a part by pairs.
    by_sample, by_pair = thrice - twice**2, twice - twice**2
    same = pairs = variance = 0.0
    for labels in batches:
        size = len(labels)
        counts = torch.unique(labels, return_counts=True)[1].double()
        own = size * (size - 1) / 2
        same, pairs = same + float((counts * (counts - 1) / 2).sum()), pairs + own
        variance += own**2 * (4 * (size - 2) * by_sample + 2 * by_pair) / (size * (size - 1)) if size > 1 else 0.0
    if not pairs or twice >= 1.0:
        return Excess(0.0, 0.0)
    observed = same / pairs
    spread = math.sqrt(variance / pairs**2 + 4 * by_sample / len(elsewhere))
    return Excess((observed - twice) / max(spread, 1e-9), (observed - twice) / (1 - twice))


def value_excess(batches: Sequence[Tensor]) -> Excess:
    """Return how much more than by chance the numbers of a batch are alike, by their ranks (Kruskal and Wallis)."""
    sizes = torch.tensor([float(len(one)) for one in batches], dtype=torch.float64)
    ranks = torch.cat(list(batches)).double().argsort().argsort().double() + 1
    count, groups = len(ranks), len(batches)
    if groups < 2 or count <= groups:
        return Excess(0.0, 0.0)
    ends = [0, *torch.tensor([len(one) for one in batches]).cumsum(0).tolist()]
    sums = torch.stack([ranks[first:last].sum() for first, last in pairwise(ends)])
    statistic = float(12 / (count * (count + 1)) * (sums**2 / sizes).sum()) - 3 * (count + 1)
    free = groups - 1
    # Wilson and Hilferty: the cube root of a chi-square is nearly normal.
    cube, small = (max(statistic, 0.0) / free) ** (1 / 3), 2 / (9 * free)
    return Excess((cube - (1 - small)) / math.sqrt(small), max(0.0, (statistic - free) / (count - 1 - free)))


# Labels that have nothing to do with the inputs


UNRELATED_Z = 2.0
"""Labels count as unrelated if no test of them comes this far beyond chance.

Of labels in random order, 19 in 20 are found so. An alarm is false where the inputs say so little of the labels that
`RELATED` samples do not show it: for a correlation of 0.2 in 4 dimensions, in less than 1 program of 100.
"""
RELATED = 1024
"""Samples that are compared with each other."""
FEWEST_RELATED = 256
SHUFFLES = 40
NEIGHBOURS = 5


def relation(inputs: Tensor, labels: Tensor) -> float:
    """Return how far beyond chance labels go with inputs, in standard deviations: the better one of two tests.

    One is the distance covariance: samples that are far apart have labels that are far apart. The other looks at the
    nearest neighbours of each sample only. Both are compared with the same labels in random orders.

    Args:
        inputs: A row of numbers for each sample.
        labels: Classes, as whole numbers, or a row of numbers for each sample.
    """
    apart = torch.cdist(_standardized(inputs), _standardized(inputs))
    if labels.is_floating_point():
        unlike = torch.cdist(_standardized(labels.flatten(1)), _standardized(labels.flatten(1)))
    else:
        unlike = (labels[:, None] != labels[None, :]).float()
    near = (apart + torch.eye(len(apart)) * 1e30).topk(min(NEIGHBOURS, len(apart) - 1), largest=False).indices
    centred = apart - apart.mean(0) - apart.mean(1, keepdim=True) + apart.mean()
    generator = torch.Generator().manual_seed(0)

    def measure(order: Tensor) -> tuple[float, float]:
        other = unlike[order][:, order]
        return float((centred * other).mean()), -float(other.gather(1, near).mean())

    found = measure(torch.arange(len(inputs)))
    chance = torch.tensor([measure(torch.randperm(len(inputs), generator=generator)) for _ in range(SHUFFLES)])
    spread = chance.std(0)
    return float(((torch.tensor(found) - chance.mean(0)) / spread.clamp(min=1e-12)).max())


def _standardized(rows: Tensor) -> Tensor:
    """Return columns of mean 0 and deviation 1, without those that are always the same."""
    spread = rows.float().std(0)
    kept = spread > 1e-12
    return (rows.float()[:, kept] - rows.float()[:, kept].mean(0)) / spread[kept]


# Samples of one set that are nearly samples of another


NEAR = 0.5
"""A sample is nearly one of the others if it is this much closer than any 99 of 100 of those are to each other."""
NEAR_SHARE, NEAR_COUNT = 0.05, 5
"""How many of the samples must be so: chance alone has at most 1 in 100, and 5 in 100 are less than one false alarm in
10,000 programs."""


def near_duplicates(evaluated: Tensor, trained: Tensor) -> int:
    """Return how many rows of one set are nearer to a row of the other than its own rows are to each other.

    0 where the other set repeats itself, so that near says nothing.
    """
    joined = _standardized(torch.cat([trained, evaluated]))
    own, others = joined[: len(trained)], joined[len(trained) :]
    if not joined.shape[1]:
        return 0
    some = own[: max(len(others), 256)]
    among = torch.cdist(some, own)
    among[torch.arange(len(some)), torch.arange(len(some))] = math.inf
    usual = float(among.min(1).values.quantile(0.01))
    return int((torch.cdist(others, own).min(1).values < NEAR * usual).sum()) if usual > 0 else 0


def is_beyond_chance(count: int, size: int) -> bool:
    """Whether so many near duplicates in so many samples are more than chance has."""
    return count >= max(NEAR_COUNT, NEAR_SHARE * size)
