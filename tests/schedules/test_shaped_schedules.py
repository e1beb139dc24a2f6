"""Warm-up, body and cool-down of any length: they join without a jump and end where they should."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.schedules.optimizers import an_optimizer
from treadle.schedules import (
    ConstantSchedule,
    CosineSchedule,
    ExponentialSchedule,
    LinearSchedule,
    PolynomialSchedule,
    StepSchedule,
    WSDSchedule,
)
from treadle.schedules.family import ShapedSchedule
from treadle.schedules.shapes import NEEDS_POSITIVE_FLOOR, SHAPES

# The same examples in every run, and no example is too slow on a busy machine.
deterministic = settings(derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
Jump = Callable[[Callable[[float], float], int, int], float]
CONTINUOUS: list[Any] = [
    ConstantSchedule,
    LinearSchedule,
    CosineSchedule,
    PolynomialSchedule,
    ExponentialSchedule,
    WSDSchedule,
]


def test_the_search_for_jumps_finds_one(largest_jump: Jump) -> None:
    assert largest_jump(lambda step: 1.0 if step < 3.7 else 0.9, 0, 8) == pytest.approx(0.1)
    assert largest_jump(lambda step: 1.0 if step < 4 else 0.9, 0, 8) == pytest.approx(0.1)
    assert largest_jump(lambda step: step**0.5, 0, 8) < 1e-5


@st.composite
def continuous_schedules(draw: st.DrawFn) -> ShapedSchedule:
    """Draw any schedule but the one that drops, of any length, warm-up and cool-down."""
    warmup, body, cooldown = draw(st.integers(0, 12)), draw(st.integers(1, 30)), draw(st.integers(0, 12))
    ratios = st.floats(0, 1)
    phases: dict[str, Any] = {
        "total_steps": warmup + body + cooldown,
        "warmup_steps": warmup,
        "cooldown_steps": cooldown,
        "warmup_start_ratio": draw(st.none() | ratios),
        "final_ratio": draw(st.none() | ratios),
    }
    floor, positive_floor = draw(ratios), draw(st.floats(1e-3, 1))
    kind = draw(st.sampled_from(CONTINUOUS))
    if kind is ConstantSchedule:
        return ConstantSchedule(an_optimizer(), **phases)
    if kind is PolynomialSchedule:
        return PolynomialSchedule(an_optimizer(), min_ratio=floor, power=draw(st.floats(0.5, 4)), **phases)
    if kind is ExponentialSchedule:
        return ExponentialSchedule(an_optimizer(), min_ratio=positive_floor, **phases)
    if kind is WSDSchedule:
        shape = draw(st.sampled_from(sorted(SHAPES)))
        floor = positive_floor if shape in NEEDS_POSITIVE_FLOOR else floor
        decay_steps = draw(st.integers(1, body))
        return WSDSchedule(an_optimizer(), decay_steps=decay_steps, decay_shape=shape, min_ratio=floor, **phases)
    return kind(an_optimizer(), min_ratio=floor, **phases)  # type: ignore[no-any-return]


@deterministic
@given(continuous_schedules())
def test_no_schedule_jumps_anywhere(largest_jump: Jump, schedule: ShapedSchedule) -> None:
    assert schedule.total_steps is not None
    assert largest_jump(schedule.factor, 0, schedule.total_steps + 2) < 1e-4


@deterministic
@given(continuous_schedules())
def test_every_phase_starts_and_ends_at_the_value_it_was_given(schedule: ShapedSchedule) -> None:
    assert schedule.total_steps is not None
    landed = getattr(schedule, "min_ratio", 1.0)
    if schedule.warmup_steps:
        assert schedule.factor(0) == pytest.approx(schedule.warmup_start_ratio)
    assert schedule.factor(schedule.warmup_steps) == 1.0
    assert schedule.factor(schedule.body_end or 0) == pytest.approx(landed, abs=1e-15)
    ends_at = landed if schedule.final_ratio is None or not schedule.cooldown_steps else schedule.final_ratio
    assert schedule.factor(schedule.total_steps) == pytest.approx(ends_at, abs=1e-15)


@deterministic
@given(continuous_schedules(), st.integers(1, 1000))
def test_the_last_value_is_held_after_the_end(schedule: ShapedSchedule, later: int) -> None:
    assert schedule.total_steps is not None
    assert schedule.factor(schedule.total_steps + later) == schedule.factor(schedule.total_steps)


@deterministic
@given(continuous_schedules())
def test_the_factor_rises_in_the_warm_up_and_never_rises_in_the_body(schedule: ShapedSchedule) -> None:
    warmup = [schedule.factor(step) for step in range(schedule.warmup_steps + 1)]
    body = [schedule.factor(step) for step in range(schedule.warmup_steps, (schedule.body_end or 0) + 1)]
    assert all(earlier <= later + 1e-15 for earlier, later in itertools.pairwise(warmup))
    assert all(earlier >= later - 1e-15 for earlier, later in itertools.pairwise(body))
    assert all(0 <= factor <= 1 + 1e-15 for factor in warmup + body)


@deterministic
@given(continuous_schedules(), st.floats(1e-6, 10), st.floats(1e-6, 10))
def test_groups_keep_their_ratio(schedule: ShapedSchedule, first: float, second: float) -> None:
    assert schedule.value(7, first) * second == pytest.approx(schedule.value(7, second) * first)


@deterministic
@given(st.integers(1, 9), st.integers(0, 8), st.floats(0.1, 0.9))
def test_a_step_schedule_jumps_only_where_it_drops(step_size: int, warmup: int, gamma: float) -> None:
    warmup = min(warmup, step_size - 1)
    schedule = StepSchedule(an_optimizer(), step_size=step_size, gamma=gamma, warmup_steps=warmup)
    for step in range(1, 4 * step_size):
        before, after = schedule.factor(step - 1e-9), schedule.factor(step)
        drops = step % step_size == 0
        assert after == pytest.approx(gamma * before if drops else before, abs=1e-7)
