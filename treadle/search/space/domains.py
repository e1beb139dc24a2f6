"""What a hyperparameter may be: a choice between values, or a range of numbers.

They are written into a lazy config where the value would stand; the search puts values in their places.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from treadle.errors import ConfigError


@dataclass(frozen=True)
class Choice:
    """One of several values.

    Attributes:
        values: The values: numbers, text, None, or lists and mappings of such.
        weights: How likely each is when values are drawn at random; None is all alike.
    """

    stands_for_a_setting: ClassVar[bool] = True  # so that a config file may have it at its top

    values: tuple[Any, ...]
    weights: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Range:
    """A number between two others, both included.

    Attributes:
        low: The smallest value.
        high: The largest.
        step: The distance of neighbouring values; None is any value between.
        log: Whether values are drawn by their logarithm: as many from 0.001 to 0.01 as from 0.01 to 0.1.
        whole: Whether it is a whole number.
    """

    stands_for_a_setting: ClassVar[bool] = True

    low: float
    high: float
    step: float | None = None
    log: bool = False
    whole: bool = False


Domain = Choice | Range


def one_of(*values: Any, weights: Sequence[float] | None = None) -> Choice:
    """Return the choice between `values`.

    >>> one_of(32, 64, 128).values
    (32, 64, 128)

    Args:
        values: What to choose from.
        weights: How likely each is when values are drawn at random.

    Raises:
        ConfigError: There is no value, or there are not as many weights as values.
    """
    if not values:
        raise ConfigError("one_of() needs at least one value")
    if weights is not None:
        weights = tuple(float(weight) for weight in weights)
        if len(weights) != len(values) or min(weights) < 0 or not sum(weights):
            raise ConfigError(f"weights={list(weights)} must be {len(values)} numbers from 0 up, not all of them 0")
    return Choice(values, weights)


def uniform(low: float, high: float, step: float | None = None) -> Range:
    """Return the numbers from `low` to `high`, all alike; with a step, only every so many.

    >>> uniform(0.0, 0.5, step=0.1)
    Range(low=0.0, high=0.5, step=0.1, log=False, whole=False)

    Raises:
        ConfigError: The range is empty, or the step is not positive.
    """
    return _range("uniform", float(low), float(high), None if step is None else float(step))


def log_uniform(low: float, high: float) -> Range:
    """Return the numbers from `low` to `high`, each order of magnitude alike.

    >>> log_uniform(1e-4, 1e-2)
    Range(low=0.0001, high=0.01, step=None, log=True, whole=False)

    Raises:
        ConfigError: The range is empty, or begins at 0 or below.
    """
    return _range("log_uniform", float(low), float(high), None, log=True)


def integer(low: int, high: int, step: int = 1, *, log: bool = False) -> Range:
    """Return the whole numbers from `low` to `high`.

    >>> integer(2, 8, step=2)
    Range(low=2, high=8, step=2, log=False, whole=True)

    Args:
        low: The smallest.
        high: The largest.
        step: Take every so many only.
        log: Draw each order of magnitude alike; then the step is 1.

    Raises:
        ConfigError: They are no whole numbers, the range is empty, or the step is not positive.
    """
    if any(isinstance(number, bool) or number != int(number) for number in (low, high, step)):
        raise ConfigError(f"integer({low!r}, {high!r}, step={step!r}): all three must be whole numbers")
    if log and step != 1:
        raise ConfigError(f"integer({low}, {high}, step={step}, log=True): with log the step is 1")
    return _range("integer", int(low), int(high), int(step), log=log, whole=True)


def _range(name: str, low: float, high: float, step: float | None, *, log: bool = False, whole: bool = False) -> Range:
    if not (math.isfinite(low) and math.isfinite(high)) or low > high:
        raise ConfigError(f"{name}({low!r}, {high!r}): the first number must be finite and not above the second")
    if log and low <= 0:
        raise ConfigError(f"{name}({low!r}, {high!r}): by logarithm, a range begins above 0")
    if step is not None and step <= 0:
        raise ConfigError(f"{name}({low!r}, {high!r}, step={step!r}): the step must be above 0")
    return Range(low, high, step, log, whole)


# Domains as text, as a command line or a YAML file gives them: `log(1e-4, 1e-2)`


_WORDS: dict[str, Callable[..., Domain]] = {
    "one_of": one_of,
    "choice": one_of,
    "uniform": uniform,
    "log": log_uniform,
    "log_uniform": log_uniform,
    "int": integer,
    "integer": integer,
}
_DOMAIN = re.compile(rf"\s*(?P<word>{'|'.join(_WORDS)})\((?P<inside>.*)\)\s*", re.DOTALL)
_NAMED = re.compile(r"\s*(?P<name>[a-z]+)\s*=(?P<value>.*)", re.DOTALL)
_PAIRS = {"(": ")", "[": "]", "{": "}"}

GRAMMAR = "one_of(a, b, ...), uniform(low, high, step=...), log(low, high), int(low, high, step=..., log=true)"
"""What can be written."""


def is_domain(text: str) -> bool:
    """Whether a text is meant as a domain.

    >>> [is_domain(text) for text in ("log(1e-4,1e-2)", "one_of(a,b)", "0.1", "sin(1)")]
    [True, True, False, False]
    """
    return _DOMAIN.fullmatch(text) is not None


def parse_domain(text: str) -> Domain:
    """Return the domain that a text describes; values are written as in overrides.

    >>> parse_domain("log(1e-4, 1e-2)")
    Range(low=0.0001, high=0.01, step=None, log=True, whole=False)
    >>> parse_domain("one_of(relu, [1, 2], null)").values
    ('relu', [1, 2], None)
    >>> parse_domain("int(8, 64, log=true)")
    Range(low=8, high=64, step=1, log=True, whole=True)

    Args:
        text: The text.

    Raises:
        ConfigError: It describes none.
    """
    from treadle.config.overrides import parse_value

    match = _DOMAIN.fullmatch(text)
    if match is None:
        raise ConfigError(f"{text!r} is no domain; write {GRAMMAR}")
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for part in _parts(match["inside"]):
        found = _NAMED.fullmatch(part)
        if found is None:
            positional.append(parse_value(part.strip(), text))
        else:
            named[found["name"]] = parse_value(found["value"].strip(), text)
    try:
        return _WORDS[match["word"]](*positional, **named)
    except (TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise ConfigError(f"{text!r}: {error}") from error
        raise ConfigError(f"{text!r} cannot be read ({error}); write {GRAMMAR}") from error


def _parts(text: str) -> list[str]:
    """Return the arguments between the brackets: split at commas that stand in no bracket and no quotes."""
    parts, depth, quote, begin = [], 0, "", 0
    for place, character in enumerate(text):
        if quote:
            quote = "" if character == quote and text[place - 1] != "\\" else quote
        elif character in "\"'":
            quote = character
        elif character in _PAIRS or character in _PAIRS.values():
            depth += 1 if character in _PAIRS else -1
        elif character == "," and depth == 0:
            parts.append(text[begin:place])
            begin = place + 1
    parts.append(text[begin:])
    return [part for part in parts if part.strip()]
