"""A grid: every combination once."""

import math
import random
from functools import cached_property
from itertools import islice

from treadle.search.assignment import Assignment
from treadle.search.space.base import Searched
from treadle.search.store.history import Proposal
from treadle.search.strategies.base import ExhaustedError, Strategy

MOST_SHUFFLED = 100_000
"""How many combinations are listed to be shuffled; those of larger spaces come in their order."""
ROUNDS = 4


class Grid(Strategy):
    """Every combination of the values once; of ranges without a step, a few values at equal distances.

    Args:
        shuffle: Whether they come in random order, so that a search that ends early has seen a bit of everything.
        seed: Which random order.
    """

    name = "grid"

    def __init__(self, *, shuffle: bool = True, seed: int = 0) -> None:
        self.shuffle = shuffle
        self.seed = seed
        self._points: _Points | None = None

    def propose(self, proposal: Proposal) -> Assignment:
        """Return the combination whose turn it is."""
        if self._points is None or self._points.searched is not proposal.searched:
            self._points = _Points(proposal.searched, self.seed if self.shuffle else None)
        return self._points.at(proposal.place)


class _Points:
    """The combinations of a space in the order of a grid.

    Args:
        searched: The space.
        seed: Of the order; None leaves them as they are enumerated.
    """

    def __init__(self, searched: Searched, seed: int | None) -> None:
        self.searched, self.seed = searched, seed

    def at(self, place: int) -> Assignment:
        """Return the combination at a place.

        Raises:
            ExhaustedError: There are not as many.
        """
        if self.searched.is_conditional:
            return self._listed(place)
        sizes = [len(dimension.options()) for dimension in self.searched.dimensions.values()]
        if place >= math.prod(sizes):
            raise ExhaustedError
        index = place if self.seed is None else permuted(place, math.prod(sizes), self.seed)
        taken: Assignment = {}
        for dimension in reversed(self.searched.dimensions.values()):
            options = dimension.options()
            index, digit = divmod(index, len(options))
            taken[dimension.label] = options[digit]
        return {label: taken[label] for label in self.searched.dimensions}

    def _listed(self, place: int) -> Assignment:
        """Return the combination at a place of a space in which not every combination exists."""
        if len(self._list) <= MOST_SHUFFLED:
            if place < len(self._list):
                return self._list[place]
            raise ExhaustedError
        found = next(islice(self.searched.enumerate(), place, None), None)
        if found is None:
            raise ExhaustedError
        return found

    @cached_property
    def _list(self) -> list[Assignment]:
        found = list(islice(self.searched.enumerate(), MOST_SHUFFLED + 1))
        if self.seed is not None and len(found) <= MOST_SHUFFLED:
            random.Random(self.seed).shuffle(found)
        return found


def permuted(place: int, size: int, seed: int) -> int:
    """Return where a random order of `size` things has the one at `place`, without making a list of them.

    >>> sorted(permuted(place, 10, seed=3) for place in range(10)) == list(range(10))
    True
    """
    half = max(1, (max(2, size) - 1).bit_length() + 1 >> 1)
    while True:
        left, right = place >> half, place & (1 << half) - 1
        for turn in range(ROUNDS):
            left, right = right, left ^ random.Random(f"{seed},{turn},{right}").getrandbits(half)
        place = left << half | right
        if place < size:  # a network of this kind permutes powers of two: whoever lands outside goes on
            return place
