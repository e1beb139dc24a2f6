"""Promotion: trials begin with a small budget, and those that do well get more, resumed from their own checkpoints."""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from treadle.errors import ConfigError
from treadle.search.assignment import Assignment
from treadle.search.space.base import Searched

RUNNING, PAUSED, ENDED, FAILED, COMPLETE = "running", "paused", "ended", "failed", "complete"
"""What a member may be: `ended` is over without all of its budget."""


@dataclass(frozen=True)
class Member:
    """A trial, as it is seen by what promotes trials.

    Attributes:
        number: Its number.
        state: "running", "paused", "ended", "failed" or "complete".
        goal: The rung that it trains for, or trained for last.
        results: What it reached at each rung that it came to, as something to be made small.
        copied: Of a copy, the trial that it begins with, the rung of that one, and the trial that it replaces.
    """

    number: int
    state: str
    goal: int
    results: Mapping[int, float]
    copied: tuple[int, int, int] | None = None

    def settled(self, rung: int) -> bool:
        """Whether it is known what it reached at a rung that it was trained for, or that it never will."""
        return rung in self.results or self.state in (FAILED, ENDED)


@dataclass(frozen=True)
class New:
    """Begin a new trial, which trains for this rung."""

    goal: int = 0


@dataclass(frozen=True)
class Promote:
    """Let a paused trial continue, up to the next rung."""

    number: int


@dataclass(frozen=True)
class End:
    """End a paused trial: it gets no more budget."""

    number: int


@dataclass(frozen=True)
class Copy:
    """Begin a trial with the checkpoint of another one and changed settings, in the place of a third."""

    source: int
    rung: int
    replaced: int


@dataclass(frozen=True)
class Wait:
    """Do nothing until a running trial has come to its rung."""


Move = New | Promote | End | Copy | Wait


class Promotion(ABC):
    """Decides which trials get more budget.

    It keeps nothing between two decisions: all it knows it is told, so that a search that was killed continues exactly
    where it was.

    Args:
        budgets: What a trial has been trained for at each rung, in growing order.

    Raises:
        ConfigError: There are fewer than two, or they do not grow.
    """

    name: str

    def __init__(self, budgets: Sequence[int]) -> None:
        self.budgets = tuple(budgets)
        whole = all(isinstance(one, int) and not isinstance(one, bool) and one > 0 for one in self.budgets)
        if len(self.budgets) < 2 or not whole or sorted(set(self.budgets)) != list(self.budgets):
            raise ConfigError(
                f"budgets={list(budgets)} must be two or more whole numbers from 1 up, each larger than the one before"
            )

    @property
    def last(self) -> int:
        """The rung at which a trial is complete."""
        return len(self.budgets) - 1

    def described(self) -> dict[str, Any]:
        """Return what must stay as it is for a search to go on, as plain data."""
        numbers = {name: value for name, value in vars(self).items() if isinstance(value, (int, float))}
        return {"kind": self.name, **numbers, "budgets": list(self.budgets)}

    def require_enough(self, trials: int) -> None:  # noqa: B027  # any number is enough for some
        """Refuse a number of trials with which none could be complete.

        Raises:
            ConfigError: It is one.
        """

    @abstractmethod
    def next(self, members: Sequence[Member], trials: int) -> Move | None:
        """Return what to do next; None if there is nothing left to do.

        Args:
            members: The trials so far, in the order in which they began; of one that was run again the last attempt.
            trials: How many may begin in all; copies do not count.
        """

    def explored(self, searched: Searched, taken: Assignment, chance: random.Random) -> Assignment:
        """Return the settings of a copy."""
        return dict(taken)


def ladder(
    min_budget: int | None, max_budget: int | None, reduction: int, budgets: Sequence[int] | None
) -> tuple[int, ...]:
    """Return the budget of each rung: those that are given, or the largest one divided again and again.

    >>> ladder(1, 27, 3, None), ladder(10, 100, 4, None), ladder(None, None, 3, [12, 200])
    ((1, 3, 9, 27), (25, 100), (12, 200))

    Raises:
        ConfigError: They cannot be made of what is given.
    """
    if isinstance(reduction, bool) or not isinstance(reduction, int) or reduction < 2:
        raise ConfigError(f"reduction={reduction!r} must be a whole number from 2 up")
    if budgets is not None:
        if min_budget is not None or max_budget is not None:
            raise ConfigError("give either min_budget and max_budget, or budgets")
        return tuple(budgets)
    least, most = min_budget, max_budget
    if not (isinstance(least, int) and isinstance(most, int) and 0 < least < most):
        raise ConfigError(
            f"min_budget={least!r} and max_budget={most!r} must be whole numbers, 1 <= min_budget < max_budget"
        )
    made = [most]
    while made[0] // reduction >= least:
        made.insert(0, made[0] // reduction)
    if len(made) < 2:
        raise ConfigError(
            f"min_budget={least}, max_budget={most}, reduction={reduction}: there is only one rung; take a smaller "
            "min_budget or reduction, or give budgets"
        )
    return tuple(made)


def require_part(name: str, value: Any, is_right: Callable[[float], bool], words: str) -> float:
    """Return a number that is as it must be.

    Raises:
        ConfigError: It is not.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not is_right(value):
        raise ConfigError(f"{name}={value!r} must be {words}")
    return value
