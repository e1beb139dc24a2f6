"""The curves of all schedules: pure functions of how far a phase has come.

Each takes `progress` from 0 to 1 and goes down from exactly 1 to exactly `floor` (`harmonic` to the last bit but
one), so that whatever comes before and after it joins without a jump.
"""

import math
from collections.abc import Callable

Shape = Callable[[float, float], float]


def interpolate(start: float, end: float, progress: float) -> float:
    """Go straight from `start` to `end`, exact at both.

    >>> interpolate(0.2, 1.0, 0.5)
    0.6
    """
    return start * (1.0 - progress) + end * progress


def linear(progress: float, floor: float) -> float:
    """Go down in a straight line."""
    return interpolate(1.0, floor, progress)


def cosine(progress: float, floor: float, power: float = 1.0) -> float:
    """Go down half a cosine wave; a `power` above 1 stays high for longer.

    >>> cosine(0.5, 0.0)
    0.5
    """
    return _above(floor, 0.5 * (1.0 + math.cos(math.pi * progress**power)))


def polynomial(progress: float, floor: float, power: float) -> float:
    """Go down as `(1 - progress) ** power`; a `power` of 1 is a straight line."""
    return _above(floor, (1.0 - progress) ** power)


def exponential(progress: float, floor: float) -> float:
    """Lose the same share in each step; `floor` must be above 0.

    >>> exponential(0.5, 0.01)
    0.1
    """
    return float(floor**progress)


def square_root(progress: float, floor: float) -> float:
    """Go down as `1 - sqrt(progress)`: fast at first, then ever slower."""
    return _above(floor, 1.0 - math.sqrt(progress))


def harmonic(progress: float, floor: float) -> float:
    """Go down so that the inverse grows in a straight line; `floor` must be above 0."""
    return 1.0 / interpolate(1.0, 1.0 / floor, progress)


def _above(floor: float, remaining: float) -> float:
    return interpolate(floor, 1.0, remaining)


SHAPES: dict[str, Shape] = {
    "linear": linear,
    "cosine": cosine,
    "exponential": exponential,
    "square_root": square_root,
    "harmonic": harmonic,
}
NEEDS_POSITIVE_FLOOR = ("exponential", "harmonic")
