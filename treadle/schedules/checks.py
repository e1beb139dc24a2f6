"""Checks on the arguments of schedules, made when one is built rather than at step 40,000."""

import math
from numbers import Real
from typing import Any

from treadle.errors import ConfigError
from treadle.placeholders import PlaceholderExpression


def number(owner: object, name: str, value: Any, *, minimum: float = 0.0, maximum: float = math.inf) -> float:
    """Return `value` if it is a finite number between `minimum` and `maximum`."""
    if isinstance(value, PlaceholderExpression):
        raise ConfigError(
            f"{_place(owner, name)} is still the placeholder {value!r}; the trainer puts the number in only when "
            f"the factory is functools.partial({type(owner).__name__}, {name}=...) passed to train()"
        )
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise ConfigError(f"{_place(owner, name)} must be a number, got {value!r}")
    if not minimum <= float(value) <= maximum:
        limits = f"at least {minimum:g}" if maximum == math.inf else f"from {minimum:g} to {maximum:g}"
        raise ConfigError(f"{_place(owner, name)} must be {limits}, got {value!r}")
    return float(value)


def positive(owner: object, name: str, value: Any) -> float:
    """Return `value` if it is a finite number above 0."""
    checked = number(owner, name, value)
    if checked == 0:
        raise ConfigError(f"{_place(owner, name)} must be above 0, got {value!r}")
    return checked


def steps(owner: object, name: str, value: Any, *, minimum: int = 0) -> int:
    """Return `value` as a whole number of optimizer updates."""
    checked = number(owner, name, value, minimum=minimum)
    if checked != int(checked):
        raise ConfigError(f"{_place(owner, name)} must be a whole number of steps, got {value!r}; use round(...)")
    return int(checked)


def ratio(owner: object, name: str, value: Any) -> float:
    """Return `value` if it is a share of the base value, from 0 to 1."""
    return number(owner, name, value, maximum=1.0)


def positive_ratio(owner: object, name: str, value: Any) -> float:
    """Return `value` if it is a share of the base value, above 0, which some shapes cannot reach."""
    return positive(owner, name, ratio(owner, name, value))


def _place(owner: object, name: str) -> str:
    return f"{type(owner).__name__}: {name}"
