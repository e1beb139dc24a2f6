"""A surrogate: a model of the results so far says what to try next, over any space of choices and numbers."""

import math
import random
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from treadle.errors import ConfigError
from treadle.search.assignment import Assignment
from treadle.search.space.base import Searched, assignment_key
from treadle.search.space.dimensions import Numeric
from treadle.search.store.history import Outcome, Proposal
from treadle.search.strategies.base import Strategy
from treadle.search.strategies.evolution import mutated

Array = NDArray[np.float64]

ELITE = 10
"""How many of the best have children among the candidates."""
MOST_RESULTS = 400
"""How many results the model is of: the best and the newest; its cost grows with the third power of them."""
SCALES, NOISES = (1.0, 2.0, 4.0), (0.01, 0.1)
"""Distances over which results resemble each other, and how much of them is noise; whichever explains them best."""
WORST_PART = 20.0
"""Results below this percentile count as good as it: how bad the bad are says nothing of the best."""


class Surrogate(Strategy):
    """Bayesian optimisation with a Gaussian process over encodings of what is decided.

    A choice is encoded by which of its values it has, a number by its place in its range, and what does not exist by
    nothing; two settings resemble each other by how few decisions differ. The candidates are random draws, and
    children of the best so far, with one or two decisions changed; the one with the largest expected improvement is
    tried. Made for architectures, where each trial is dear and there are few of them.

    With several objectives they are weighed anew at random for each trial.

    Args:
        startup: How many trials are drawn at random first.
        pool: How many candidates are compared for each trial.

    Raises:
        ConfigError: A number is too small.
    """

    name = "surrogate"

    def __init__(self, startup: int = 20, pool: int = 200) -> None:
        if startup < 2 or pool < 2:
            raise ConfigError(f"Surrogate(startup={startup}, pool={pool}): both must be 2 or more")
        self.startup, self.pool = startup, pool

    def propose(self, proposal: Proposal) -> Assignment:
        """Return the candidate with the largest expected improvement."""
        searched, chance = proposal.searched, proposal.chance
        outcomes = proposal.learned(self.startup)
        if len(outcomes) < self.startup:
            return searched.sample(chance)
        losses = single_losses(outcomes, chance)
        kept = _kept(losses)
        known = {assignment_key(one.taken) for one in outcomes}
        order = sorted(range(len(losses)), key=losses.__getitem__)
        elite = [outcomes[place].taken for place in order[:ELITE]]
        candidates = [one for one in self._candidates(searched, elite, chance) if assignment_key(one) not in known]
        if not candidates:
            return searched.sample(chance)
        results = encoded(searched, [outcomes[place].taken for place in kept])
        scores = expected_improvement(results, losses[kept], encoded(searched, candidates))
        return candidates[int(np.argmax(scores))]

    def _candidates(self, searched: Searched, elite: Sequence[Assignment], chance: random.Random) -> list[Assignment]:
        found: dict[str, Assignment] = {}
        for place in range(self.pool):
            if place % 2:
                one = searched.sample(chance)
            else:
                one = mutated(searched, elite[chance.randrange(len(elite))], chance)
                if chance.random() < 0.5:
                    one = mutated(searched, one, chance)
            if searched.allows(one):
                found[assignment_key(one)] = one
        return list(found.values())


def single_losses(outcomes: Sequence[Outcome], chance: random.Random) -> Array:
    """Return one number for each result, to be made small: of several objectives, the worst by weights at random."""
    values = np.array([one.values for one in outcomes], dtype=float)
    if values.shape[1] == 1:
        return values[:, 0]
    low, high = values.min(axis=0), values.max(axis=0)
    parts = (values - low) / np.where(high > low, high - low, 1.0)
    drawn = np.array([-math.log(1.0 - chance.random()) for _ in range(values.shape[1])])
    weighed = parts * (drawn / drawn.sum())
    found: Array = weighed.max(axis=1) + 0.05 * weighed.sum(axis=1)
    return found


def _kept(losses: Array) -> list[int]:
    """Return the places of the results that the model is of, in their order."""
    places = range(len(losses))
    if len(losses) <= MOST_RESULTS:
        return list(places)
    best = sorted(places, key=losses.__getitem__)[: MOST_RESULTS // 2]
    return sorted({*best, *places[-(MOST_RESULTS - len(best)) :]})


def encoded(searched: Searched, many: Sequence[Assignment]) -> Array:
    """Return a row of numbers for each: two rows are as far apart, added up, as the decisions that differ.

    Args:
        searched: What there is to decide.
        many: What was decided.
    """
    columns: list[list[float]] = []
    for label, dimension in searched.dimensions.items():
        own = [taken.get(label) for taken in many]
        is_there = [label in taken for taken in many]
        if isinstance(dimension, Numeric):
            units = [0.0 if value is None else dimension.unit(value) for value in own]
            columns += [units, [0.5 * there for there in is_there]]
            continue
        for option in dimension.options():
            columns.append([0.5 * (there and value == option) for value, there in zip(own, is_there, strict=True)])
    return np.array(columns, dtype=float).T


def expected_improvement(known: Array, losses: Array, candidates: Array) -> Array:
    """Return how much better than the best each candidate is expected to be, by a Gaussian process.

    Args:
        known: The encodings of what has a result.
        losses: The results, to be made small.
        candidates: The encodings of what might be tried.
    """
    levels = np.maximum(-losses, np.percentile(-losses, WORST_PART))
    spread = levels.std()
    levels = (levels - levels.mean()) / (spread if spread > 0 else 1.0)
    apart, to_candidates = _distances(known, known), _distances(candidates, known)
    fits = [_fitted(apart, levels, scale, noise) for scale in SCALES for noise in NOISES]
    _, scale, noise, factor, weights = max(fits, key=lambda fit: fit[0])
    likeness = np.exp(-to_candidates / scale)
    mean = likeness @ weights
    explained = np.linalg.solve(factor, likeness.T)
    deviation = np.sqrt(np.maximum(1 + noise - (explained**2).sum(axis=0), 1e-9))
    gap = (mean - levels.max()) / deviation
    below = 0.5 * (1 + np.array([math.erf(one / math.sqrt(2)) for one in gap]))
    found: Array = deviation * (gap * below + np.exp(-(gap**2) / 2) / math.sqrt(2 * math.pi))
    return found


def _distances(one: Array, other: Array) -> Array:
    found: Array = np.abs(one[:, None, :] - other[None, :, :]).sum(axis=2)
    return found


def _fitted(apart: Array, levels: Array, scale: float, noise: float) -> tuple[float, float, float, Array, Array]:
    """Return how likely the results are by such a process, and what is needed to go by it."""
    covariance = np.exp(-apart / scale) + noise * np.eye(len(apart))
    factor: Array = np.linalg.cholesky(covariance).astype(np.float64)
    weights: Array = np.linalg.solve(factor.T, np.linalg.solve(factor, levels))
    likely = -0.5 * float(levels @ weights) - float(np.log(np.diag(factor)).sum())
    return likely, scale, noise, factor, weights
