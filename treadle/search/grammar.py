"""Domains as text, as a command line or a YAML file gives them: `log(1e-4, 1e-2)`."""

import re
from collections.abc import Callable
from typing import Any

from treadle.errors import ConfigError
from treadle.search.domains import Domain, integer, log_uniform, one_of, uniform

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
    from treadle.config.override_values import parse_value

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
