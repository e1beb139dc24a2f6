"""Which checkpoints of a run are kept."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.checkpoint import Policy
from treadle.errors import ConfigError

STEPS = [10, 20, 30, 40, 50]


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        (Policy(), [30, 40, 50]),
        (Policy(keep_last=1), [50]),
        (Policy(keep_last=9), STEPS),
        (Policy(keep_last=None), STEPS),
        (Policy(keep_last=1, keep_every=20), [20, 40, 50]),
        (Policy(keep_last=2, keep_every=1), STEPS),
        (Policy(keep_last=1, keep_every=7), [50]),
    ],
)
def test_the_last_and_the_spaced_are_kept(policy: Policy, kept: list[int]) -> None:
    assert sorted(policy.kept(STEPS, pointed_at=set())) == kept


def test_what_is_pointed_at_is_kept_and_what_is_not_there_is_not() -> None:
    assert sorted(Policy(keep_last=1).kept(STEPS, pointed_at={10, 99})) == [10, 50]


def test_nothing_is_kept_of_nothing() -> None:
    assert Policy().kept([], pointed_at={3}) == set()


def test_the_order_of_the_steps_makes_no_difference() -> None:
    assert sorted(Policy(keep_last=2).kept([50, 10, 40], pointed_at=set())) == [40, 50]


@settings(deadline=None, derandomize=True, database=None)
@given(
    st.sets(st.integers(1, 200), max_size=30),
    st.integers(1, 10) | st.none(),
    st.integers(1, 50) | st.none(),
    st.sets(st.integers(1, 200), max_size=3),
)
def test_only_what_is_old_unspaced_and_unpointed_goes(
    steps: set[int], last: int | None, every: int | None, pointed: set[int]
) -> None:
    kept = Policy(keep_last=last, keep_every=every).kept(sorted(steps), pointed_at=pointed)
    newer = {step: sum(other > step for other in steps) for step in steps}
    expected = {
        step
        for step in steps
        if last is None or newer[step] < last or step in pointed or (every is not None and step % every == 0)
    }
    assert kept == expected


@pytest.mark.parametrize("name", ["keep_last", "keep_every"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "3", True])
def test_a_number_that_cannot_be_meant_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        Policy(**{name: value})
    assert str(caught.value) == f"Policy({name}={value!r}): give a whole number from 1, or None"


def test_an_unknown_way_to_take_errors_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        Policy(on_error="ignore")
    assert str(caught.value) == "Policy(on_error='ignore'): use 'raise' or 'warn'"
