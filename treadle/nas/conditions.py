"""Conditions on decisions: alternatives, one of which must hold."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from treadle.nas.decisions import Condition
from treadle.search.assignment import key_of


def both(one: Sequence[Condition], other: Sequence[Condition]) -> list[Condition]:
    """Return the conditions under which one of each holds."""
    found: dict[str, Condition] = {}
    for left, right in product(one, other):
        shared = {label: left[label] & right[label] for label in set(left) & set(right)}
        if all(shared.values()):
            merged = {**left, **right, **shared}
            found[text_of([merged])] = merged
    return list(found.values())


def text_of(alternatives: Sequence[Condition]) -> str:
    """Return a text that is the same for the same alternatives."""
    return repr([sorted((label, sorted(values)) for label, values in one.items()) for one in alternatives])


def holding(alternatives: Sequence[Condition], architecture: Mapping[str, Any]) -> int:
    """Return how many of some alternatives hold in an architecture."""
    return sum(
        all(label in architecture and key_of(architecture[label]) in values for label, values in one.items())
        for one in alternatives
    )
