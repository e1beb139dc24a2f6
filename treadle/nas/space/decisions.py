"""What can be decided in a space, and the plain data that says how it was decided."""

import math
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from types import FrameType
from typing import Any

import torch
from torch import nn

from treadle.errors import ConfigError
from treadle.search.assignment import Assignment, key_of, plain

# What is said of a value that is asked for before anybody decided on it


CALL = nn.Module._call_impl.__code__
"""The code that runs a module's forward, with its hooks."""


def require_forward(description: str, placed: bool = False) -> None:
    """Refuse to give the value of an expression where a model is being built, and not run.

    A layer that took the value there would keep that of the defaults, whatever is decided later.

    Args:
        description: The expression, for the message.
        placed: Whether a space was read that it belongs to: then the model stands, and its value may be looked at.

    Raises:
        ConfigError: A module's constructor asks, or nobody knows yet where the expression belongs.
    """
    if torch.compiler.is_compiling():
        return
    runs, maker = _asked_by(sys._getframe(2))
    if not runs and (maker or not placed):
        raise ConfigError(f"{description} is not decided yet, {_remedy(maker)}")


def undecided_error(description: str) -> ConfigError:
    """Return the error for whoever wants to know whether an expression is true."""
    _, maker = _asked_by(sys._getframe(2))
    if maker.startswith("nn."):
        return ConfigError(f"{description} is not decided yet, {_remedy(maker)}")
    return ConfigError(
        f"{description} is not decided yet, so it is neither true nor false; use & and | instead of `and` and `or`, "
        "condition(test, a, b) instead of `if`, nas.Built(...) for a module that is made of it, and value_of(...) in a "
        "forward"
    )


def _asked_by(frame: FrameType | None) -> tuple[bool, str]:
    """Return whether a module runs forward somewhere above `frame`, and the innermost module that is being made."""
    maker = ""
    while frame is not None:
        code, asking = frame.f_code, frame.f_locals.get("self")
        if code is CALL or (code.co_name == "forward" and isinstance(asking, nn.Module)):
            return True, maker
        if code.co_name == "__init__" and isinstance(asking, nn.Module) and not maker:
            maker = _name(type(asking))
        frame = frame.f_back
    return False, maker


def _remedy(maker: str) -> str:
    in_forward = "in a forward, int(...), float(...) and value_of(...) give the value in force"
    if maker.startswith("nn."):
        return f"and {maker} cannot be made of it; write nas.Built({maker}, ...) with the same arguments; {in_forward}"
    place = f" in {maker}.__init__" if maker else " where nothing runs forward"
    return (
        f"and its value is asked for{place}; make what depends on it with nas.Built(nn.Linear, ...), or with "
        f"nas.Built(function, ...) for anything else, nas.Repeat for a number of blocks; {in_forward}"
    )


def _name(kind: type[nn.Module]) -> str:
    own = kind.__module__.startswith("torch.nn.")
    return f"nn.{kind.__name__}" if own else kind.__qualname__


# The names of what is to be decided


class Label:
    """Something to be decided: called by its label or, where it has none, after the place where it is used."""

    label: str | None
    _path: str | None = None

    @property
    def current_label(self) -> str:
        """The label in force; empty if it has none, and nobody has looked where it is used."""
        return self.label or self._path or ""

    @property
    def key(self) -> str:
        """The label in force.

        Raises:
            ConfigError: It has none, and nobody has looked where it is used.
        """
        if not self.current_label:
            owner = type(self).__name__ if isinstance(self, nn.Module) else self
            raise ConfigError(
                f"{owner!r} has no label yet; give it one, label=..., or read the model that it is used in first: "
                "nas.Space(model)"
            )
        return self.current_label

    @property
    def placed(self) -> bool:
        """Whether somebody has looked where it is used."""
        return self._path is not None

    def set_path(self, path: str) -> None:
        """Take note of where it is used: its label, unless it was given one."""
        self._path = path


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


def normalize_value(decision: Decision, value: Any) -> Any:
    """Return a value as architectures hold it: plain, and positions in ascending order."""
    return sorted(value) if isinstance(decision, Subset) else plain(value)


# Conditions on decisions: alternatives, one of which must hold


def intersect_conditions(one: Sequence[Condition], other: Sequence[Condition]) -> list[Condition]:
    """Return the conditions under which one of each holds."""
    found: dict[str, Condition] = {}
    for left, right in product(one, other):
        shared = {label: left[label] & right[label] for label in set(left) & set(right)}
        if all(shared.values()):
            merged = {**left, **right, **shared}
            found[condition_key([merged])] = merged
    return list(found.values())


def condition_key(alternatives: Sequence[Condition]) -> str:
    """Return a text that is the same for the same alternatives."""
    return repr([sorted((label, sorted(values)) for label, values in one.items()) for one in alternatives])


def count_holding(alternatives: Sequence[Condition], architecture: Mapping[str, Any]) -> int:
    """Return how many of some alternatives hold in an architecture."""
    return sum(
        all(label in architecture and key_of(architecture[label]) in values for label, values in one.items())
        for one in alternatives
    )
