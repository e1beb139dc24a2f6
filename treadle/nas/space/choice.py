"""What every module that leaves something open has in common."""

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, TypeVar

from torch import nn

from treadle.errors import ConfigError
from treadle.nas.space.choosers import DEFAULTS, Chooser
from treadle.nas.space.decisions import Architecture, Condition, Decision, Label
from treadle.nas.space.value_choice import FREEZE_KEY, Leaf, copy_module

# The best combinations of parts that are ranked one by one


Item = TypeVar("Item")


def best_combinations(lists: Sequence[Sequence[tuple[float, Item]]]) -> Iterator[tuple[float, tuple[Item, ...]]]:
    """Yield one item of each list together with the sum of their scores, the largest sum first.

    Args:
        lists: For each part its items with their scores, the best first.

    >>> pairs = best_combinations([[(3.0, "a"), (1.0, "b")], [(2.0, "x"), (1.5, "y")]])
    >>> [(score, "".join(items)) for score, items in pairs]
    [(5.0, 'ax'), (4.5, 'ay'), (3.0, 'bx'), (2.5, 'by')]
    """

    def entry(places: tuple[int, ...]) -> tuple[float, tuple[int, ...]]:
        return (-sum(one[place][0] for one, place in zip(lists, places, strict=True)), places)

    if not all(lists):
        return
    start = (0,) * len(lists)
    queue, seen = [entry(start)], {start}
    while queue:
        score, places = heapq.heappop(queue)
        yield -score, tuple(one[place][1] for one, place in zip(lists, places, strict=True))
        for part, place in enumerate(places):
            after = (*places[:part], place + 1, *places[part + 1 :])
            if place + 1 < len(lists[part]) and after not in seen:
                seen.add(after)
                heapq.heappush(queue, entry(after))


def make_module(given: nn.Module | Callable[..., nn.Module], *numbers: int, maker: str) -> nn.Module:
    """Return a copy of a module, or what a function makes with some numbers; `maker` is the function in messages."""
    made = deepcopy(given) if isinstance(given, nn.Module) else given(*numbers)
    if not isinstance(made, nn.Module):
        raise ConfigError(f"{maker} returned a {type(made).__name__}; return a module")
    return made


Ranked = list[tuple[float, Architecture]]
"""Parts of architectures with their scores, the best first."""


class Choice(Label, nn.Module):
    """A module that leaves something open.

    As it is it forwards with its default; a trainer puts its own `chooser` in the place of that. Whoever has no label
    is named after his place in the model.

    Args:
        label: Its name; choices that share one are decided alike.
    """

    chooser: Chooser = DEFAULTS

    def __init__(self, label: str | None = None) -> None:
        super().__init__()
        self.label = label

    def decisions(self, place: str) -> list[Decision]:
        """Return what there is to decide, apart from `values`."""
        return []

    def values(self) -> list[tuple[str, Leaf]]:
        """Return the decisions on values that it uses, each with the name of the argument."""
        return []

    def branches(self) -> Mapping[str, Sequence[Condition]]:
        """Return, for modules inside of it by their names, the conditions one of which must hold to use them."""
        return {}

    def frozen(self, architecture: Mapping[str, Any], memo: dict[Any, Any]) -> nn.Module:
        """Return a copy of what an architecture leaves of it.

        Args:
            architecture: The values of the decisions.
            memo: What was copied already, as `copy.deepcopy` has it.
        """
        raise NotImplementedError

    # What trainers that weigh every candidate ask ---------------------------------------------------------

    def rows(self) -> dict[str, tuple[Any, ...]]:
        """Return what is weighed: for each row its name and what its weights are for, apart from `values`."""
        return {}

    def ranked(self, scores: Mapping[str, Sequence[float]], most: int) -> list[Ranked]:
        """Return what can be decided, best first: one list for each part that does not depend on the others.

        Args:
            scores: The logarithm of each weight, by row.
            most: How many are enough in each list.
        """
        return []

    def reason_not_differentiable(self) -> str | None:
        """Return why its candidates cannot be weighed against each other; None if they can."""
        return None

    def __deepcopy__(self, memo: dict[Any, Any]) -> Any:
        """Return a copy, or what is left of it if the copy is a frozen network."""
        return self.frozen(memo[FREEZE_KEY], memo) if FREEZE_KEY in memo else copy_module(self, memo)
