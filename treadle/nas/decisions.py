"""What can be decided in a space, and the plain data that says how it was decided."""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from treadle.errors import ConfigError
from treadle.search.assignment import Assignment, key_of, plain

Architecture = Assignment
"""What was decided: for each label a name, a number, a list of numbers or another plain value."""

Condition = Mapping[str, frozenset[str]]
"""Labels that must all take one of some values, each value as `key_of` writes it."""


@dataclass(frozen=True, eq=False)
class Decision:
    """One thing to decide: which of some candidates to take.

    Args:
        label: Its name; all that share it are decided alike.
        candidates: The values it can take, as plain data.
        default: The value of a space that nobody decided on.
        place: Where in the model it is, for messages.
        weights: How likely each candidate is when architectures are drawn; None is all alike.
    """

    label: str
    candidates: tuple[Any, ...]
    default: Any
    place: str = ""
    weights: tuple[float, ...] | None = None

    @property
    def count(self) -> int:
        """How many values there are."""
        return len(self.candidates)

    def options(self) -> Iterator[Any]:
        """Yield every value, in order."""
        yield from self.candidates

    def contains(self, value: Any) -> bool:
        """Whether `value` is one of the values."""
        try:
            return key_of(value) in {key_of(candidate) for candidate in self.candidates}
        except ConfigError:
            return False

    def sample(self, chance: random.Random) -> Any:
        """Draw a value."""
        if self.weights is None:
            return self.candidates[chance.randrange(len(self.candidates))]
        return chance.choices(self.candidates, self.weights)[0]

    def described(self) -> str:
        """Return what can be chosen, for messages."""
        return str(list(self.candidates))


@dataclass(frozen=True, eq=False)
class Subset(Decision):
    """A decision whose value is a list of positions, in ascending order.

    Args:
        chosen: How many positions are taken; None is any number of them, none included.
    """

    chosen: int | None = 1

    @property
    def count(self) -> int:
        """How many subsets there are."""
        size = len(self.candidates)
        return 2**size if self.chosen is None else math.comb(size, self.chosen)

    def options(self) -> Iterator[Any]:
        """Yield every subset: the smaller ones first, then in the order of their positions."""
        sizes = range(len(self.candidates) + 1) if self.chosen is None else [self.chosen]
        for size in sizes:
            yield from (list(picked) for picked in combinations(self.candidates, size))

    def contains(self, value: Any) -> bool:
        """Whether `value` is a list of different positions, as many as there must be."""
        if not isinstance(value, (list, tuple)) or not all(type(item) is int for item in value):
            return False
        known = set(value) <= set(self.candidates) and len(set(value)) == len(value)
        return known and (self.chosen is None or len(value) == self.chosen)

    def sample(self, chance: random.Random) -> Any:
        """Draw a subset."""
        if self.chosen is None:
            return [place for place in self.candidates if chance.random() < 0.5]
        if self.weights is not None:
            return chance.choices(self.candidates, self.weights)
        return sorted(chance.sample(self.candidates, self.chosen))

    def described(self) -> str:
        """Return what can be chosen, for messages."""
        many = "any" if self.chosen is None else str(self.chosen)
        return f"lists of {many} of {list(self.candidates)}"


def checked_weights(weights: Sequence[float] | None, count: int, where: str) -> tuple[float, ...] | None:
    """Return prior weights as a tuple.

    Raises:
        ConfigError: They are not as many as the candidates, or one is below zero.
    """
    if weights is None:
        return None
    found = tuple(float(weight) for weight in weights)
    if len(found) != count or any(weight < 0 or not math.isfinite(weight) for weight in found) or not sum(found):
        raise ConfigError(f"{where}: weights={list(weights)} must be {count} numbers from 0, not all 0")
    return found


def normalised(decision: Decision, value: Any) -> Any:
    """Return a value as architectures hold it: plain, and positions in ascending order."""
    return sorted(value) if isinstance(decision, Subset) else plain(value)
