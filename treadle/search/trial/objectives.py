"""What a search makes large or small."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from treadle.errors import ConfigError
from treadle.search.trial.reports import DEFAULT

MAXIMIZE, MINIMIZE = "maximize", "minimize"
_WORDS = {"maximize": MAXIMIZE, "max": MAXIMIZE, "minimize": MINIMIZE, "min": MINIMIZE}


@dataclass(frozen=True)
class Objective:
    """One thing to make large or small.

    Attributes:
        name: The name that it is reported under; one alone may be reported as a bare number.
        direction: "maximize" or "minimize".
    """

    name: str
    direction: str

    @property
    def sign(self) -> int:
        """1 if small is good, -1 if large is."""
        return 1 if self.direction == MINIMIZE else -1


def parse_objectives(given: Any) -> tuple[Objective, ...]:
    """Return the objectives of a search.

    >>> parse_objectives("minimize")
    (Objective(name='default', direction='minimize'),)
    >>> [one.name for one in parse_objectives({"accuracy": "max", "flops": "min"})]
    ['accuracy', 'flops']

    Args:
        given: A direction, a name with a direction for each objective, or a list of names, all to be made large.

    Raises:
        ConfigError: It is none of these.
    """
    if isinstance(given, str) and given in _WORDS:
        return (Objective(DEFAULT, _WORDS[given]),)
    if isinstance(given, str):
        given = [given]
    named = given if isinstance(given, Mapping) else dict.fromkeys(_sequence(given), MAXIMIZE)
    wrong = [direction for direction in named.values() if direction not in _WORDS]
    if not named or wrong:
        reason = f"{wrong[0]!r} is no direction" if wrong else "there is none"
        raise ConfigError(
            f"objectives={given!r}: {reason}; write 'maximize', 'minimize', or {{'accuracy': 'maximize'}}"
        )
    return tuple(Objective(str(name), _WORDS[direction]) for name, direction in named.items())


def parse_limits(given: Any) -> dict[str, float]:
    """Return the largest value of each metric that has one.

    Raises:
        ConfigError: A value is no finite number.
    """
    if given is None:
        return {}
    for limit in given.values() if isinstance(given, Mapping) else [None]:
        if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not math.isfinite(limit):
            raise ConfigError(f"limits={given!r} must be the largest value by the name of a metric: {{'latency': 5.0}}")
    return {str(name): float(limit) for name, limit in given.items()}


def _sequence(given: Any) -> Sequence[str]:
    if not isinstance(given, (list, tuple)) or len(set(given)) != len(given):
        raise ConfigError(
            f"objectives={given!r} must be a direction, a list of different names, or names with directions"
        )
    return given
