"""One thing that a search decides: its values, how they are drawn, changed, counted and stored."""

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from treadle.errors import ConfigError
from treadle.search.assignment import key_of
from treadle.search.space.domains import Choice, Domain, Range

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

SPREAD = 0.2
"""How far a mutation moves a number, as a part of its range."""
GRID_POINTS = 5
"""How many values a grid takes from a range without a step."""

_SCALARS = (type(None), bool, int, float, str)


class Dimension(ABC):
    """One thing to decide.

    Args:
        label: Its name.
    """

    def __init__(self, label: str) -> None:
        self.label = label

    @abstractmethod
    def options(self) -> Sequence[Any]:
        """Return the values that a grid visits."""

    @property
    def is_listed(self) -> bool:
        """Whether `options` are all values that there are."""
        return True

    @abstractmethod
    def sample(self, chance: random.Random) -> Any:
        """Draw a value."""

    @abstractmethod
    def mutate(self, value: Any, chance: random.Random) -> Any:
        """Return another value than `value`, or the same if there is no other."""

    @abstractmethod
    def contains(self, value: Any) -> bool:
        """Whether `value` is one of the values."""

    @abstractmethod
    def distribution(self) -> "BaseDistribution":
        """Return it in Optuna's words."""

    @abstractmethod
    def stored(self, value: Any) -> Any:
        """Return a value as Optuna holds it."""

    @abstractmethod
    def restored(self, stored: Any) -> Any:
        """Return the value that Optuna holds."""

    @abstractmethod
    def described(self) -> Any:
        """Return what it is as plain data: two searches go on with each other only if these agree."""

    @property
    def is_fixed(self) -> bool:
        """Whether there is only one value."""
        return False


class Categorical(Dimension):
    """One of several values.

    Args:
        label: Its name.
        values: The values.
        weights: How likely each is when drawn at random; None is all alike.

    Raises:
        ConfigError: A value is there twice.
    """

    def __init__(self, label: str, values: Sequence[Any], weights: Sequence[float] | None = None) -> None:
        super().__init__(label)
        self.values = list(values)
        self.weights = None if weights is None else list(weights)
        self._names = _stored_names(label, self.values)
        self._places = {key_of(value): place for place, value in enumerate(self.values)}

    def options(self) -> Sequence[Any]:
        """Return all values."""
        return self.values

    def sample(self, chance: random.Random) -> Any:
        """Draw a value."""
        if self.weights is None:
            return self.values[chance.randrange(len(self.values))]
        return chance.choices(self.values, self.weights)[0]

    def mutate(self, value: Any, chance: random.Random) -> Any:
        """Return one of the other values, all alike; the likelihoods are for a beginning without knowledge."""
        others = [other for other in self.values if key_of(other) != key_of(value)]
        return others[chance.randrange(len(others))] if others else value

    def contains(self, value: Any) -> bool:
        """Whether `value` is one of the values."""
        return key_of(value) in self._places

    def distribution(self) -> "BaseDistribution":
        """Return it in Optuna's words."""
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(self._names)

    def stored(self, value: Any) -> Any:
        """Return a value as Optuna holds it: scalars as they are, others as text."""
        return self._names[self._places[key_of(value)]]

    def restored(self, stored: Any) -> Any:
        """Return the value that Optuna holds."""
        # Equal is not the same: 1, 1.0 and True are three values.
        place = next(place for place, name in enumerate(self._names) if name == stored and type(name) is type(stored))
        return self.values[place]

    def described(self) -> Any:
        """Return the values as Optuna holds them."""
        return {"choice": self._names}

    @property
    def is_fixed(self) -> bool:
        """Whether there is only one value."""
        return len(self.values) == 1


def _stored_names(label: str, values: Sequence[Any]) -> list[Any]:
    """Return each value as Optuna can hold it: scalars as they are; all as text if some are no scalars, or alike."""
    keys = [key_of(value) for value in values]
    twice = next((value for place, value in enumerate(values) if keys[place] in keys[:place]), None)
    if len(set(keys)) != len(keys):
        raise ConfigError(f"{label!r} can be {twice!r} twice; each value stands there once")
    alike = len({value for value in values if isinstance(value, _SCALARS)}) < sum(
        isinstance(value, _SCALARS) for value in values
    )
    finite = all(math.isfinite(value) for value in values if isinstance(value, float))
    if all(isinstance(value, _SCALARS) for value in values) and not alike and finite:
        return list(values)
    return keys


class Numeric(Dimension):
    """A number from a range.

    Args:
        label: Its name.
        domain: The range.
        points: How many values a grid takes if the range has no step.
    """

    def __init__(self, label: str, domain: Range, points: int = GRID_POINTS) -> None:
        super().__init__(label)
        self.domain = domain
        self.points = points

    def options(self) -> Sequence[Any]:
        """Return the values that a grid visits: all of them, or a few at equal distances."""
        low, high, step = self.domain.low, self.domain.high, self.domain.step
        if step is not None and not self.domain.log:
            count = math.floor((high - low) / step + 1e-9) + 1
            return [self._rounded(low + place * step) for place in range(count)]
        if self.domain.whole and high - low < self.points:
            return list(range(int(low), int(high) + 1))
        parts = [place / (self.points - 1) for place in range(self.points)]
        return list(dict.fromkeys(self._from_unit(part) for part in parts))

    @property
    def is_listed(self) -> bool:
        """Whether `options` are all values that there are: a range without steps has others."""
        low, high, domain = self.domain.low, self.domain.high, self.domain
        return (domain.step is not None and not domain.log) or (domain.whole and high - low < self.points)

    def sample(self, chance: random.Random) -> Any:
        """Draw a value."""
        if self.domain.step is not None and not self.domain.log:
            options = math.floor((self.domain.high - self.domain.low) / self.domain.step + 1e-9) + 1
            return self._rounded(self.domain.low + chance.randrange(options) * self.domain.step)
        return self._from_unit(chance.random())

    def nearest(self, number: float) -> Any:
        """Return the value of the range that a number is nearest to."""
        return self._rounded(min(max(number, self.domain.low), self.domain.high))

    def unit(self, value: float) -> float:
        """Return where a value lies in the range, from 0 to 1."""
        return self._to_unit(value)

    def mutate(self, value: Any, chance: random.Random) -> Any:
        """Return a value near `value`; for whole numbers and steps, at least one step away."""
        for _ in range(100):
            part = self._to_unit(value) + chance.gauss(0.0, SPREAD)
            changed = self._from_unit(min(max(part, 0.0), 1.0))
            if changed != value:
                return changed
        return value if self.is_fixed else self._neighbour(value)

    def contains(self, value: Any) -> bool:
        """Whether `value` lies in the range."""
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        return self.domain.low <= value <= self.domain.high and (not self.domain.whole or value == int(value))

    def distribution(self) -> "BaseDistribution":
        """Return it in Optuna's words."""
        from optuna.distributions import FloatDistribution, IntDistribution

        low, high, step, log = self.domain.low, self._last(), self.domain.step, self.domain.log
        if self.domain.whole:
            return IntDistribution(int(low), int(high), log=log, step=int(step or 1))
        return FloatDistribution(low, high, log=log, step=step)

    def stored(self, value: Any) -> Any:
        """Return the number."""
        return int(value) if self.domain.whole else float(value)

    def restored(self, stored: Any) -> Any:
        """Return the number."""
        return self.stored(stored)

    def described(self) -> Any:
        """Return the range."""
        return {"range": [self.domain.low, self.domain.high], "step": self.domain.step, "log": self.domain.log}

    @property
    def is_fixed(self) -> bool:
        """Whether there is only one value."""
        return self._last() == self.domain.low

    def _last(self) -> float:
        """Return the largest value that the step leads to; Optuna would take another range with a warning."""
        low, high, step = self.domain.low, self.domain.high, self.domain.step
        if step is None or self.domain.log:
            return high
        return self._rounded(low + math.floor((high - low) / step + 1e-9) * step)  # type: ignore[no-any-return]

    def _neighbour(self, value: Any) -> Any:
        options = list(self.options())
        place = options.index(min(options, key=lambda option: abs(option - value)))
        return options[place + 1 if place + 1 < len(options) else place - 1]

    def _to_unit(self, value: float) -> float:
        low, high = self._scaled(self.domain.low), self._scaled(self.domain.high)
        return (self._scaled(value) - low) / (high - low) if high > low else 0.0

    def _from_unit(self, part: float) -> Any:
        low, high = self._scaled(self.domain.low), self._scaled(self.domain.high)
        scaled = low + part * (high - low)
        value = math.exp(scaled) if self.domain.log else scaled
        return self._rounded(min(max(value, self.domain.low), self.domain.high))

    def _scaled(self, value: float) -> float:
        return math.log(value) if self.domain.log else value

    def _rounded(self, value: float) -> Any:
        """Return the value that a number stands for: the nearest step, and a whole number where it must be one."""
        step, low = self.domain.step, self.domain.low
        if step is not None and not self.domain.log:
            value = min(low + round((value - low) / step) * step, self.domain.high)
        return round(value) if self.domain.whole else float(value)


def make_dimension(label: str, domain: Domain) -> Dimension:
    """Return what a domain decides, under a name."""
    if isinstance(domain, Choice):
        return Categorical(label, domain.values, domain.weights)
    return Numeric(label, domain)
