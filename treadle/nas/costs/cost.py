"""What a network costs, as a sum over what may be in it."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from torch import nn

from treadle.errors import ConfigError
from treadle.nas.space.cell import Cell
from treadle.nas.space.choice import Choice
from treadle.nas.space.decisions import Condition, condition_key, count_holding, intersect_conditions
from treadle.nas.space.model_space import Space
from treadle.nas.space.value_choice import assignments
from treadle.search.assignment import key_of

# When a part of a space is used: in terms of decisions, and of the weights of a one-shot trainer


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
        return Scope(intersect_conditions(outer.decisions, self.decisions), intersect_conditions(outer.rows, self.rows))


ALWAYS = Scope([{}], [{}])


def find_scopes(choice: Choice) -> dict[str, Scope]:
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


def value_scopes(value: Any) -> Iterator[tuple[Any, Scope]]:
    """Yield what something with expressions in it can be, each with when it is that."""
    for taken, outcome in assignments(value):
        one: Condition = {label: frozenset([key_of(each)]) for label, each in taken.items()}
        yield outcome, Scope([one], [one])


class Cost:
    """A sum of amounts, each counted where a part of a space is used.

    Make it with `flops_of`, `parameters_of`, `latency_of` or `Cost.from_table`. It is plain data: `to_dict` and
    `from_dict` bring it into a file and back.

    Args:
        unit: What is counted.
    """

    def __init__(self, unit: str) -> None:
        self.unit = unit
        self._terms: dict[str, tuple[Scope, float]] = {}

    def add(self, scope: Scope, amount: float) -> None:
        """Count `amount` wherever `scope` says."""
        if not (scope.decisions or scope.rows):
            # It can never be.
            return
        key = f"{condition_key(scope.decisions)} {condition_key(scope.rows)}"
        before = self._terms[key][1] if key in self._terms else 0.0
        self._terms[key] = (scope, before + float(amount))

    @property
    def terms(self) -> list[tuple[Scope, float]]:
        """What is counted, with when."""
        return list(self._terms.values())

    def of(self, architecture: Mapping[str, Any]) -> float:
        """Return the cost of one network."""
        return sum(amount * count_holding(scope.decisions, architecture) for scope, amount in self.terms)

    @classmethod
    def from_table(
        cls, model: nn.Module, table: Mapping[str, Mapping[Any, float]], *, fixed: float = 0.0, unit: str = "ms"
    ) -> "Cost":
        """Return a cost from a table of amounts by label and candidate, such as measured latencies.

        Args:
            model: The space.
            table: For each label the amount of each candidate; what is left out costs nothing.
            fixed: What every network costs.
            unit: What is counted.

        Raises:
            ConfigError: A label or a candidate is unknown.
        """
        cost, space = cls(unit), Space(model)
        cost.add(Scope([{}], [{}]), fixed)
        for label, amounts in table.items():
            if label not in space.decisions:
                raise ConfigError(f"the table has {label!r}, which the space does not know: {list(space.decisions)}")
            for candidate, amount in amounts.items():
                if not space.decisions[label].contains(candidate):
                    known = space.decisions[label].described()
                    raise ConfigError(f"the table has {candidate!r} for {label!r}, which takes one of {known}")
                when: list[Condition] = [{label: frozenset([key_of(candidate)])}]
                cost.add(Scope(when, when), amount)
        return cost

    def to_dict(self) -> dict[str, Any]:
        """Return the cost as JSON can hold it."""
        terms = [
            {"decisions": _plain(scope.decisions), "rows": _plain(scope.rows), "amount": amount}
            for scope, amount in self.terms
        ]
        return {"unit": self.unit, "terms": terms}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Cost":
        """Return the cost that `to_dict` wrote."""
        cost = cls(str(data["unit"]))
        for term in data["terms"]:
            cost.add(Scope(_conditions(term["decisions"]), _conditions(term["rows"])), term["amount"])
        return cost


def _plain(conditions: Sequence[Condition]) -> list[dict[str, list[str]]]:
    return [{label: sorted(values) for label, values in one.items()} for one in conditions]


def _conditions(data: Sequence[Mapping[str, Sequence[str]]]) -> list[Condition]:
    return [{label: frozenset(values) for label, values in one.items()} for one in data]
