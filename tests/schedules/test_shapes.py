"""The curves: where they start, where they end, and one point between, worked out by hand."""

import math
from functools import partial

import pytest

from treadle.schedules import shapes

CURVES = [*shapes.SHAPES.values(), partial(shapes.polynomial, power=2.0), partial(shapes.cosine, power=2.0)]


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("floor", [0.1, 1 / 3, 1.0])
def test_a_curve_goes_from_one_to_the_floor(curve: shapes.Shape, floor: float) -> None:
    assert curve(0.0, floor) == 1.0
    assert curve(1.0, floor) == pytest.approx(floor, rel=1e-15)


@pytest.mark.parametrize("curve", CURVES)
def test_a_curve_never_rises(curve: shapes.Shape) -> None:
    values = [curve(step / 50, 0.01) for step in range(51)]
    assert values == sorted(values, reverse=True)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (shapes.linear(0.25, 0.2), 0.8),
        (shapes.cosine(1 / 3, 0.2), 0.2 + 0.8 * 0.75),
        (shapes.cosine(0.5, 0.0, power=2.0), (1 + math.cos(math.pi / 4)) / 2),
        (shapes.polynomial(0.5, 0.2, power=2.0), 0.2 + 0.8 * 0.25),
        (shapes.exponential(0.5, 0.01), 0.1),
        (shapes.square_root(0.25, 0.2), 0.2 + 0.8 * 0.5),
        (shapes.harmonic(0.25, 0.2), 0.5),
    ],
)
def test_a_curve_passes_through_the_point_worked_out_by_hand(value: float, expected: float) -> None:
    assert value == pytest.approx(expected, rel=1e-15)
