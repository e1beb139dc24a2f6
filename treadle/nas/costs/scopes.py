"""When a part of a space is used: in terms of decisions, and of the weights of a one-shot trainer."""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

from treadle.nas.cell import Cell
from treadle.nas.choice import Choice
from treadle.nas.conditions import both
from treadle.nas.decisions import Condition
from treadle.nas.expressions import assignments
from treadle.search.assignment import key_of


class Scope(NamedTuple):
    """When something is used.

    Attributes:
        decisions: Alternatives on decisions; something is used as often as there are some that hold.
        rows: Alternatives on rows of weights, no two of which can hold at once.
    """

    decisions: Sequence[Condition]
    rows: Sequence[Condition]

    def within(self, outer: "Scope") -> "Scope":
        """Return when it is used, given that it lies in something else."""
        return Scope(both(outer.decisions, self.decisions), both(outer.rows, self.rows))


ALWAYS = Scope([{}], [{}])


def scopes_in(choice: Choice) -> dict[str, Scope]:
    """Return, for modules inside of a choice by their names, when they are used."""
    if isinstance(choice, Cell):
        return dict(_scopes_in_cell(choice))
    return {name: Scope(one, one) for name, one in choice.branches().items()}


def _scopes_in_cell(cell: Cell) -> Iterator[tuple[str, Scope]]:
    branches = cell.branches()
    for node in cell.nodes:
        for place, name in product(range(node), cell.names):
            row: Condition = {cell.edge_label(node, place): frozenset([key_of(name)])}
            module = f"edges.{node}_{place}.{name}"
            yield module, Scope(branches[module], [row])


def scopes_of_values(value: Any) -> Iterator[tuple[Any, Scope]]:
    """Yield what something with expressions in it can be, each with when it is that."""
    for taken, outcome in assignments(value):
        one: Condition = {label: frozenset([key_of(each)]) for label, each in taken.items()}
        yield outcome, Scope([one], [one])
