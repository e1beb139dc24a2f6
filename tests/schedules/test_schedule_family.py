"""Treadle's own schedules: their values, their joints, and that they take up where they stopped."""

import itertools
import json
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.optim import SGD, lr_scheduler

from treadle.errors import ConfigError
from treadle.placeholders import TrainerPlaceholderValues as P
from treadle.placeholders import replace_placeholders
from treadle.schedules import (
    ConstantSchedule,
    CosineSchedule,
    ExponentialSchedule,
    LinearSchedule,
    PolynomialSchedule,
    Schedule,
    StepSchedule,
    WSDSchedule,
)
from treadle.schedules.shaped import ShapedSchedule
from treadle.schedules.shapes import NEEDS_POSITIVE_FLOOR, SHAPES

# The same examples in every run, and no example is too slow on a busy machine.
deterministic = settings(derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
Factory = Callable[[torch.optim.Optimizer], ShapedSchedule]


def an_optimizer(lr: float = 1.0, second_lr: float = 0.25) -> SGD:
    groups = [{"params": [torch.zeros(1)]}, {"params": [torch.zeros(1)], "lr": second_lr}]
    return SGD(groups, lr=lr)


def largest_jump(curve: Callable[[float], float], start: float, end: float) -> float:
    """Halve each unit interval forty times towards the larger change: a jump stays, a slope goes to nothing."""
    jumps = []
    for whole in range(math.floor(start), math.ceil(end)):
        low, high = float(whole), whole + 1.0
        for _ in range(40):
            middle = (low + high) / 2
            if abs(curve(middle) - curve(low)) >= abs(curve(high) - curve(middle)):
                high = middle
            else:
                low = middle
        jumps.append(abs(curve(high) - curve(low)))
    return max(jumps)


def test_the_search_for_jumps_finds_one() -> None:
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
    kind = draw(st.sampled_from([ConstantSchedule, LinearSchedule, CosineSchedule, PolynomialSchedule,
                                 ExponentialSchedule, WSDSchedule]))  # fmt: skip
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
def test_no_schedule_jumps_anywhere(schedule: ShapedSchedule) -> None:
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


def torch_curve(create: Callable[[SGD], lr_scheduler.LRScheduler], steps: int) -> list[float]:
    optimizer = SGD([torch.zeros(1)], lr=1.0)
    scheduler = create(optimizer)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize(
    ("schedule", "reference"),
    [
        (
            partial(LinearSchedule, total_steps=20, min_ratio=0.2),
            lambda optimizer: lr_scheduler.LinearLR(optimizer, 1.0, 0.2, total_iters=20),
        ),
        (
            partial(CosineSchedule, total_steps=20, min_ratio=0.2),
            lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 20, eta_min=0.2),
        ),
        (
            partial(PolynomialSchedule, total_steps=20, power=3.0),
            lambda optimizer: lr_scheduler.PolynomialLR(optimizer, 20, power=3.0),
        ),
        (
            partial(ExponentialSchedule, total_steps=20, min_ratio=0.2),
            lambda optimizer: lr_scheduler.ExponentialLR(optimizer, 0.2 ** (1 / 20)),
        ),
        (
            partial(StepSchedule, step_size=6, gamma=0.3),
            lambda optimizer: lr_scheduler.StepLR(optimizer, 6, 0.3),
        ),
        (
            partial(StepSchedule, milestones=[3, 4, 11], gamma=0.3),
            lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [3, 4, 11], 0.3),
        ),
    ],
)
def test_a_shape_agrees_with_the_scheduler_of_torch_of_that_name(schedule: Factory, reference: Any) -> None:
    ours = torch_curve(schedule, 21)  # type: ignore[arg-type]
    assert ours == pytest.approx(torch_curve(reference, 21), abs=1e-12)


def test_a_warm_up_spends_no_update_at_zero_unless_told_to() -> None:
    assert [ConstantSchedule(an_optimizer(), warmup_steps=3).factor(step) for step in range(4)] == [0.25, 0.5, 0.75, 1]
    from_zero = ConstantSchedule(an_optimizer(), warmup_steps=4, warmup_start_ratio=0.0)
    assert [from_zero.factor(step) for step in range(5)] == [0, 0.25, 0.5, 0.75, 1]


def test_a_cool_down_goes_from_where_the_body_ended_to_its_final_ratio() -> None:
    held = LinearSchedule(an_optimizer(), total_steps=8, cooldown_steps=4, min_ratio=0.5)
    assert [held.factor(step) for step in range(4, 10)] == [0.5] * 6
    falling = LinearSchedule(an_optimizer(), total_steps=8, cooldown_steps=4, min_ratio=0.5, final_ratio=0.1)
    assert [falling.factor(step) for step in range(4, 10)] == pytest.approx([0.5, 0.4, 0.3, 0.2, 0.1, 0.1])
    constant = ConstantSchedule(an_optimizer(), total_steps=8, cooldown_steps=4)
    assert [constant.factor(step) for step in range(4, 10)] == [1, 0.75, 0.5, 0.25, 0, 0]


def test_update_k_moves_the_weights_by_the_rate_of_step_k() -> None:
    weight = torch.zeros(1, requires_grad=True)
    optimizer = SGD([weight], lr=8.0)
    schedule = LinearSchedule(optimizer, total_steps=4)
    moves = []
    for _ in range(5):
        before = weight.item()
        weight.grad = torch.ones(1)
        optimizer.step()
        schedule.step()
        moves.append(before - weight.item())
    assert moves == [8.0, 6.0, 4.0, 2.0, 0.0]


def test_a_placeholder_factory_builds_a_schedule_as_long_as_the_run() -> None:
    total_steps = P.NUM_EPOCHS * P.NUM_UPDATE_STEPS_PER_EPOCH
    factory = partial(CosineSchedule, total_steps=total_steps, warmup_steps=round(0.1 * total_steps), min_ratio=0.01)
    schedule = replace_placeholders(factory, {"NUM_EPOCHS": 3, "NUM_UPDATE_STEPS_PER_EPOCH": 40})(an_optimizer())
    assert (schedule.total_steps, schedule.warmup_steps) == (120, 12)


EVERY_SHAPE: list[Factory] = [
    partial(ConstantSchedule, total_steps=24, warmup_steps=5, cooldown_steps=6),
    partial(ConstantSchedule, warmup_steps=5),
    partial(StepSchedule, step_size=7, total_steps=24, warmup_steps=5, cooldown_steps=6),
    partial(StepSchedule, milestones=[9, 13]),
    partial(LinearSchedule, total_steps=24, warmup_steps=5, cooldown_steps=6, min_ratio=0.1),
    partial(CosineSchedule, total_steps=24, warmup_steps=5, cooldown_steps=6, min_ratio=0.1),
    partial(PolynomialSchedule, total_steps=24, warmup_steps=5, cooldown_steps=6, min_ratio=0.1),
    partial(ExponentialSchedule, total_steps=24, warmup_steps=5, cooldown_steps=6, min_ratio=0.1),
    partial(WSDSchedule, total_steps=24, warmup_steps=5, decay_steps=8, cooldown_steps=3),
    partial(WSDSchedule, warmup_steps=5, decay_steps=8),
]


def follow(schedule: Schedule, until: int) -> list[list[float]]:
    """Return what the optimizer is set to at every step from here until `until`."""
    rates = []
    while True:
        rates.append([group["lr"] for group in schedule.optimizer.param_groups])
        if schedule.num_updates == until:
            return rates
        schedule.step()


@pytest.mark.parametrize("order", ["optimizer first", "schedule first", "no optimizer state"])
@pytest.mark.parametrize("factory", EVERY_SHAPE)
def test_a_schedule_resumed_at_any_step_goes_on_exactly(factory: Factory, order: str) -> None:
    uninterrupted = follow(factory(an_optimizer()), until=27)
    interrupted_optimizer = an_optimizer()
    interrupted = factory(interrupted_optimizer)
    for step in range(28):
        saved = json.loads(json.dumps(interrupted.state_dict()))
        optimizer = an_optimizer()
        if order == "optimizer first":
            optimizer.load_state_dict(interrupted_optimizer.state_dict())
        resumed = factory(optimizer)
        resumed.load_state_dict(saved)
        if order == "schedule first":
            optimizer.load_state_dict(interrupted_optimizer.state_dict())
        assert follow(resumed, until=27) == uninterrupted[step:]
        assert resumed.get_last_lr() == uninterrupted[-1]
        interrupted.step()


def test_the_state_is_the_step_number_and_the_length() -> None:
    schedule = CosineSchedule(an_optimizer(), total_steps=10)
    schedule.step()
    assert schedule.state_dict() == {"num_updates": 1, "built_for": 10, "total_steps": 10}
    resumed = CosineSchedule(an_optimizer(), total_steps=10)
    resumed.load_state_dict({"num_updates": 1})
    assert resumed.get_last_lr() == schedule.get_last_lr()


@deterministic
@given(st.sampled_from(EVERY_SHAPE[4:9]), st.integers(0, 23), st.integers(24, 60))
def test_stretching_gives_the_value_of_the_new_length_at_the_same_step(factory: Any, step: int, longer: int) -> None:
    stretched = factory(an_optimizer())
    stretched.load_state_dict({"num_updates": step})
    stretched.stretch(longer)
    built = factory(an_optimizer(), total_steps=longer)
    built.load_state_dict({"num_updates": step})
    assert stretched.total_steps == longer
    assert follow(stretched, until=60) == follow(built, until=60)


def test_a_run_resumed_with_another_length_has_the_value_of_that_length() -> None:
    schedule = LinearSchedule(an_optimizer(), total_steps=10)
    for _ in range(5):
        schedule.step()
    longer = LinearSchedule(an_optimizer(), total_steps=20)
    longer.load_state_dict(schedule.state_dict())
    assert longer.total_steps == 20
    assert longer.get_last_lr() == [0.75, 0.1875]


def test_a_length_set_while_running_is_taken_up_by_a_resumed_run() -> None:
    schedule = WSDSchedule(an_optimizer(), decay_steps=4)
    assert schedule.total_steps is None
    for _ in range(6):
        schedule.step()
    schedule.stretch(schedule.num_updates + schedule.decay_steps)
    schedule.step()
    assert schedule.get_last_lr() == [0.75, 0.1875]

    resumed = WSDSchedule(an_optimizer(), decay_steps=4)
    resumed.load_state_dict(schedule.state_dict())
    assert resumed.total_steps == 10
    assert follow(resumed, until=11) == follow(schedule, until=11)

    asked_for_more = WSDSchedule(an_optimizer(), decay_steps=4, total_steps=50)
    asked_for_more.load_state_dict(resumed.state_dict())
    assert asked_for_more.total_steps == 50
    assert asked_for_more.get_last_lr() == [1.0, 0.25]


def test_a_schedule_cannot_be_stretched_to_less_than_is_done() -> None:
    schedule = LinearSchedule(an_optimizer(), total_steps=10)
    schedule.load_state_dict({"num_updates": 6})
    with pytest.raises(ConfigError, match="LinearSchedule cannot be stretched to 5 steps: 6 are done"):
        schedule.stretch(5)


def test_a_schedule_without_a_length_cannot_be_stretched() -> None:
    with pytest.raises(ConfigError, match="ConstantSchedule was built without total_steps and has no length to change"):
        ConstantSchedule(an_optimizer()).stretch(10)


def test_a_length_that_does_not_fit_leaves_the_schedule_as_it_was() -> None:
    schedule = WSDSchedule(an_optimizer(), warmup_steps=3, decay_steps=4, total_steps=10)
    with pytest.raises(
        ConfigError, match="warmup_steps=3, decay_steps=4 and cooldown_steps=0 are more than total_steps=6"
    ):
        schedule.stretch(6)
    assert schedule.total_steps == 10


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (partial(LinearSchedule, total_steps=0), "LinearSchedule: total_steps must be at least 1, got 0"),
        (partial(LinearSchedule, total_steps=None), "LinearSchedule: total_steps must be a number, got None"),
        (partial(LinearSchedule, total_steps=9.5), "total_steps must be a whole number of steps, got 9.5; use round"),
        (partial(LinearSchedule, total_steps=True), "total_steps must be a number, got True"),
        (partial(LinearSchedule, total_steps=math.inf), "total_steps must be a number, got inf"),
        (
            partial(LinearSchedule, total_steps=P.NUM_EPOCHS * 2),
            r"LinearSchedule: total_steps is still the placeholder NUM_EPOCHS \* 2; .*"
            r"functools.partial\(LinearSchedule, total_steps=...\)",
        ),
        (
            partial(CosineSchedule, total_steps=9, warmup_steps=-1),
            "CosineSchedule: warmup_steps must be at least 0, got -1",
        ),
        (partial(CosineSchedule, total_steps=9, cooldown_steps=-1), "cooldown_steps must be at least 0, got -1"),
        (
            partial(CosineSchedule, total_steps=9, warmup_steps=6, cooldown_steps=3),
            "CosineSchedule: warmup_steps=6 and cooldown_steps=3 leave nothing of total_steps=9",
        ),
        (partial(CosineSchedule, total_steps=9, min_ratio=1.5), "min_ratio must be from 0 to 1, got 1.5"),
        (
            partial(CosineSchedule, total_steps=9, warmup_start_ratio=-1),
            "warmup_start_ratio must be from 0 to 1, got -1",
        ),
        (partial(CosineSchedule, total_steps=9, final_ratio=2), "final_ratio must be from 0 to 1, got 2"),
        (partial(PolynomialSchedule, total_steps=9, power=0), "PolynomialSchedule: power must be above 0, got 0"),
        (partial(ExponentialSchedule, total_steps=9, min_ratio=0), "ExponentialSchedule: min_ratio must be above 0"),
        (partial(ConstantSchedule, cooldown_steps=3), "ConstantSchedule: cooldown_steps needs total_steps"),
        (partial(StepSchedule), "StepSchedule takes either step_size or milestones"),
        (partial(StepSchedule, step_size=3, milestones=[4]), "StepSchedule takes either step_size or milestones"),
        (partial(StepSchedule, step_size=0), "StepSchedule: step_size must be at least 1, got 0"),
        (partial(StepSchedule, milestones=[9, 4]), r"StepSchedule: milestones must rise, got \[9, 4\]"),
        (partial(StepSchedule, step_size=3, gamma=2), "StepSchedule: gamma must be from 0 to 1, got 2"),
        (
            partial(StepSchedule, step_size=3, warmup_steps=4),
            "the first drop, at step 3, falls into the warm-up of 4 steps",
        ),
        (partial(WSDSchedule, decay_steps=0), "WSDSchedule: decay_steps must be at least 1, got 0"),
        (partial(WSDSchedule, decay_steps=3, decay_shape="cosin"), "no decay_shape 'cosin'; did you mean 'cosine'"),
        (
            partial(WSDSchedule, decay_steps=3, decay_shape="stairs"),
            r"no decay_shape 'stairs'; choose one of \['cosine', 'exponential', 'harmonic', 'linear', 'square_root'\]",
        ),
        (partial(WSDSchedule, decay_steps=3, decay_shape="harmonic"), "WSDSchedule: min_ratio must be above 0"),
        (
            partial(WSDSchedule, decay_steps=5, total_steps=9, warmup_steps=3, cooldown_steps=2),
            "warmup_steps=3, decay_steps=5 and cooldown_steps=2 are more than total_steps=9",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused_when_the_schedule_is_built(factory: Factory, message: str) -> None:
    optimizer = an_optimizer()
    with pytest.raises(ConfigError, match=message):
        factory(optimizer)
    assert [group["lr"] for group in optimizer.param_groups] == [1.0, 0.25]
