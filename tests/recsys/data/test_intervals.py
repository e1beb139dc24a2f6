"""The grammar of intervals."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.errors import ConfigError
from treadle.recsys.data.tables.filters import parse_intervals, within

numbers = st.integers(-5, 5)


@given(st.lists(numbers, max_size=20), numbers, numbers, st.booleans(), st.booleans())
def test_an_interval_holds_what_lies_between_its_ends(
    values: list[int], low: int, high: int, with_low: bool, with_high: bool
) -> None:
    text = f"{'[' if with_low else '('}{low},{high}{']' if with_high else ')'}"
    expected = [
        (low <= value if with_low else low < value) and (value <= high if with_high else value < high)
        for value in values
    ]
    try:
        intervals = parse_intervals(text, "x")
    except ConfigError:
        assert low > high or (low == high and not (with_low and with_high))
    else:
        assert within(np.array(values, float), intervals).tolist() == expected


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("[3,inf)", [False, False, True, True, True]),
        ("(-inf, 3)", [True, True, False, False, False]),
        ("[1,1];(3, 5]", [True, False, False, True, True]),
        (" [ 2 , 4 ) ", [False, True, True, False, False]),
        ([3, 5], [False, False, True, True, True]),
        ([3, "inf"], [False, False, True, True, True]),
        ((3, 5), [False, False, False, True, False]),
        ("[2.5,3.5]", [False, False, True, False, False]),
    ],
)
def test_intervals_are_written_as_recbole_writes_them(text: Any, inside: list[bool]) -> None:
    assert within(np.array([1, 2, 3, 4, 5]), parse_intervals(text, "x")).tolist() == inside


def test_a_missing_number_is_in_no_interval() -> None:
    assert within(np.array([np.nan]), parse_intervals("(-inf,inf)", "x")).tolist() == [False]


@pytest.mark.parametrize(
    "text", ["3", "[3]", "[3,4,5]", "{3,4}", "[a,b]", "", "[1,2];", "[nan,2]", "[__import__('os'),2]"]
)
def test_what_is_no_interval_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^rating=.* is no interval; write \[3,5\]"):
        parse_intervals(text, "rating")


@pytest.mark.parametrize("text", ["[5,3]", "(3,3]", "[3,3)"])
def test_an_empty_interval_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError, match="there is no number in"):
        parse_intervals(text, "rating")
