"""Regularised evolution: the best of a few becomes a parent, and the oldest dies, however good it is."""

import random

from treadle.errors import ConfigError
from treadle.search.assignment import Assignment, key_of
from treadle.search.space.base import Searched
from treadle.search.space.dimensions import Dimension
from treadle.search.store.history import PARENT, Outcome, Proposal, dominates
from treadle.search.strategies.base import Strategy

CHILDREN = 100
"""How many children a parent may have that the constraints refuse before another one is asked."""


class Evolution(Strategy):
    """Regularised evolution with an ageing population.

    The population are the results that were born last. The first of them are drawn at random. For each further trial
    a few are drawn from the population; the best of these is the parent, and the trial is the parent with one decision
    changed. With several objectives the best are those that no other of the few is better than in all, and one of
    them is drawn. Nothing is remembered but the trials themselves, so a search goes on exactly where it was.

    Args:
        population: How many live at a time.
        sample: How many compete to be a parent.

    Raises:
        ConfigError: One of them is below 1, or more compete than there are.
    """

    name = "evolution"

    def __init__(self, population: int = 20, sample: int = 5) -> None:
        if not 1 <= sample <= population:
            raise ConfigError(f"Evolution(population={population}, sample={sample}) needs 1 <= sample <= population")
        self.population = population
        self.sample = sample

    def propose(self, proposal: Proposal) -> Assignment:
        """Return a random draw at first, then children of good parents."""
        outcomes = proposal.learned(self.population)
        if len(outcomes) < self.population:
            return proposal.searched.sample(proposal.chance)
        alive = outcomes[-self.population :]
        for _ in range(CHILDREN):
            parent = self._parent(alive, proposal.chance)
            child = mutated(proposal.searched, parent.taken, proposal.chance)
            if proposal.searched.allows(child):
                proposal.notes[PARENT] = parent.number
                return child
        return proposal.searched.sample(proposal.chance)

    def _parent(self, alive: list[Outcome], chance: random.Random) -> Outcome:
        few = chance.sample(alive, self.sample)
        best = [one for one in few if not any(dominates(other.values, one.values) for other in few)]
        return best[chance.randrange(len(best))]


def mutated(searched: Searched, taken: Assignment, chance: random.Random) -> Assignment:
    """Return what was decided with one decision changed; decisions that come to exist by that are drawn."""
    changeable = [label for label in taken if not searched.dimensions[label].is_fixed]
    changed = changeable[chance.randrange(len(changeable))] if changeable else None

    def pick(dimension: Dimension) -> object:
        label = dimension.label
        if label == changed:
            return dimension.mutate(taken[label], chance)
        return taken[label] if label in taken else dimension.sample(chance)

    return searched.decide(pick)


def distance(one: Assignment, other: Assignment) -> int:
    """Return in how many decisions two architectures differ; one that only one of them has counts.

    >>> distance({"a": 1, "b": 2}, {"a": 1, "b": 3, "c": 0})
    2
    """
    labels = one.keys() | other.keys()
    absent = object()
    return sum(
        label not in one or label not in other or key_of(one.get(label, absent)) != key_of(other.get(label, absent))
        for label in labels
    )
