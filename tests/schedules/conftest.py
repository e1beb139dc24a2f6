"""How the tests of schedules look for a jump."""

import math
from collections.abc import Callable

import pytest


@pytest.fixture(scope="session")
def largest_jump() -> Callable[[Callable[[float], float], int, int], float]:
    """A search for the largest jump of a curve between two steps."""

    def search(curve: Callable[[float], float], start: int, end: int) -> float:
        return max(_largest_change(curve, step) for step in range(start, end))

    return search


def _largest_change(curve: Callable[[float], float], step: int) -> float:
    """Halve the step forty times, towards the larger change: a jump stays, a slope goes to nothing."""
    low, high = float(step), math.nextafter(step + 1.0, 0)
    for _ in range(40):
        middle = (low + high) / 2
        if abs(curve(middle) - curve(low)) >= abs(curve(high) - curve(middle)):
            high = middle
        else:
            low = middle
    # The end of a step is the beginning of the next, from the left.
    joint = abs(curve(step + 1.0) - curve(math.nextafter(step + 1.0, 0)))
    return max(joint, abs(curve(high) - curve(low)))
