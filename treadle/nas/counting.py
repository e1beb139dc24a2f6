"""How many architectures a space has, without going through all of them where that can be helped."""

import math
from typing import TYPE_CHECKING

from treadle.errors import ConfigError
from treadle.nas.decisions import Architecture

if TYPE_CHECKING:
    from treadle.nas.space import Space

MOST_VISITS = 200_000
"""How many combinations are looked at before a space counts as too entangled."""


def count_architectures(space: "Space") -> int:
    """Return the number of different architectures of `space`.

    Decisions that nothing binds together are counted apart and multiplied. Of those that are bound, only the ones
    that others depend on are gone through value by value.

    Raises:
        ConfigError: Too many are bound together.
    """
    return math.prod(_Counting(space, labels).run() for labels in _bound_together(space))


def _bound_together(space: "Space") -> list[list[str]]:
    """Return the labels in groups that have nothing to do with each other."""
    parent = {label: label for label in space.decisions}

    def root(label: str) -> str:
        while parent[label] != label:
            label = parent[label]
        return label

    ties = [[label, *space.depends_on(label)] for label in space.decisions]
    ties += [[label for label in constraint.labels if label in parent] for constraint in space.constraints]
    for first, *others in filter(None, ties):
        for other in others:
            parent[root(other)] = root(first)
    groups: dict[str, list[str]] = {}
    for label in space.decisions:
        groups.setdefault(root(label), []).append(label)
    return list(groups.values())


class _Counting:
    def __init__(self, space: "Space", labels: list[str]) -> None:
        self._space, self._labels, self._visits = space, labels, 0
        deciding = {other for label in labels for other in space.depends_on(label)}
        self._constraints = [one for one in space.constraints if set(one.labels) & set(labels)]
        self._deciding = deciding | {label for one in self._constraints for label in one.labels}

    def run(self) -> int:
        """Count from the first label on."""
        return self._count(0, {})

    def _count(self, at: int, taken: Architecture) -> int:
        if at == len(self._labels):
            return int(all(constraint.satisfied(taken) for constraint in self._constraints))
        label = self._labels[at]
        if not self._space.exists(label, taken):
            return self._count(at + 1, taken)
        decision = self._space.decisions[label]
        if label not in self._deciding:
            return decision.count * self._count(at + 1, taken)
        self._visits += decision.count
        if self._visits > MOST_VISITS:
            raise ConfigError(
                f"the space cannot be counted: {len(self._labels)} decisions, {self._labels[0]!r} among them, are "
                "bound together by constraints or nesting"
            )
        return sum(self._count(at + 1, {**taken, label: option}) for option in decision.options())
