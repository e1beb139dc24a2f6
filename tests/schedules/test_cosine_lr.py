"""`CosineLrScheduler`: the arguments of pytorch-accelerated, without the jump, the overshoot and the lag."""

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.schedules.optimizers import an_optimizer, rates
from treadle.errors import ConfigError
from treadle.schedules import CosineLrScheduler
from treadle.schedules.placeholders import replace_placeholders

# The same examples in every run, and no example is too slow on a busy machine.
deterministic = settings(derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
Jump = Callable[[Callable[[float], float], int, int], float]


def cosine(**arguments: Any) -> CosineLrScheduler:
    return CosineLrScheduler(an_optimizer(second_lr=0.5), **{"num_update_steps_per_epoch": 10, **arguments})


def test_without_warm_up_it_is_half_a_cosine_wave_from_the_first_update() -> None:
    expected = [0.1 + 0.9 * (1 + math.cos(math.pi * step / 20)) / 2 for step in range(20)]
    assert rates(cosine(total_num_epochs=2, lr_min=0.1), 22) == pytest.approx([*expected, 0.1, 0.1])


def test_the_minimum_and_the_start_can_be_shares_of_each_group() -> None:
    scheduler = cosine(total_num_epochs=2, num_warmup_epochs=1, min_lr_ratio=0.2, warmup_starting_lr_ratio=0.5)
    assert scheduler.get_last_lr() == [0.5, 0.25]
    scheduler.step_update(20)
    assert scheduler.get_last_lr() == pytest.approx([0.2, 0.1])


def test_a_warm_up_by_ratio_never_overshoots_the_base_rate() -> None:
    # 1.45 times the base rate in the library the names come from.
    warmup = rates(cosine(total_num_epochs=4, num_warmup_epochs=2, warmup_starting_lr_ratio=0.5), 21)
    assert warmup == pytest.approx([0.5 + 0.5 * step / 20 for step in range(21)])


def test_the_cosine_takes_all_the_steps_between_warm_up_and_cool_down() -> None:
    # It ended `warmup` steps early there, and fell from 0.411 to 0 at step 70 of 100.
    scheduler = cosine(total_num_epochs=10, num_warmup_epochs=3, num_cooldown_epochs=1, lr_min=0.0)
    assert scheduler.value(30, 1.0) == 1.0
    assert scheduler.value(60, 1.0) == pytest.approx(0.5)
    assert scheduler.value(70, 1.0) == pytest.approx((1 + math.cos(math.pi * 40 / 60)) / 2)
    assert scheduler.value(90, 1.0) == scheduler.value(99, 1.0) == scheduler.value(150, 1.0) == 0.0


def test_a_higher_k_stays_high_for_longer() -> None:
    quarter = cosine(total_num_epochs=1, k_decay=2.0, lr_min=0.0).value(5, 1.0)
    assert quarter == pytest.approx((1 + math.cos(math.pi / 4)) / 2)


@deterministic
@given(
    total=st.integers(3, 40),
    warmup=st.floats(0, 1),
    cooldown=st.floats(0, 0.5),
    base=st.floats(1e-3, 2),
    lr_min=st.floats(0, 0.1),
    ratios=st.tuples(st.none() | st.floats(0, 1), st.none() | st.floats(0, 1)),
    k_decay=st.floats(0.5, 3),
)
def test_it_never_jumps(
    largest_jump: Jump,
    total: int,
    warmup: float,
    cooldown: float,
    base: float,
    lr_min: float,
    ratios: tuple[float | None, float | None],
    k_decay: float,
) -> None:
    scheduler = CosineLrScheduler(
        an_optimizer(second_lr=0.5),
        total_num_epochs=total,
        num_update_steps_per_epoch=1,
        num_warmup_epochs=int(warmup * (total - 1)),
        num_cooldown_epochs=int(cooldown * (total - 1 - int(warmup * (total - 1)))),
        lr_min=lr_min,
        min_lr_ratio=ratios[0],
        warmup_starting_lr_ratio=ratios[1],
        k_decay=k_decay,
    )
    assert largest_jump(lambda step: scheduler.value(step, base), 0, total + 2) < 1e-4


def test_it_resumes_at_any_step_exactly() -> None:
    arguments = {"total_num_epochs": 3, "num_warmup_epochs": 1, "num_cooldown_epochs": 1}
    uninterrupted = rates(cosine(**arguments), 33)
    for step in range(33):
        interrupted = cosine(**arguments)
        rates(interrupted, step)
        resumed = cosine(**arguments)
        resumed.load_state_dict(json.loads(json.dumps(interrupted.state_dict())))
        assert rates(resumed, 33 - step) == uninterrupted[step:]


def test_a_state_of_pytorch_accelerated_is_read_and_its_lag_made_up() -> None:
    # Three updates done: its counter starts at -1.
    old = {"total_iterations": 30, "lr_min": 1e-6, "warmup_iterations": 0, "num_updates": 2}
    scheduler = cosine(total_num_epochs=3)
    scheduler.load_state_dict(old)
    assert scheduler.num_updates == 3
    assert scheduler.get_last_lr()[0] == rates(cosine(total_num_epochs=3), 4)[3]


def test_it_can_be_stretched() -> None:
    scheduler = cosine(total_num_epochs=1, lr_min=0.0)
    rates(scheduler, 10)
    assert scheduler.get_last_lr() == [0.0, 0.0]
    scheduler.stretch(20)
    assert scheduler.total_iterations == scheduler.total_steps == 20
    assert scheduler.get_last_lr() == pytest.approx([0.5, 0.25])


def test_its_factory_is_sized_by_the_run() -> None:
    factory = CosineLrScheduler.create_scheduler_fn(num_warmup_epochs=1)
    values = {"NUM_EPOCHS": 4, "NUM_UPDATE_STEPS_PER_EPOCH": 5}
    scheduler = replace_placeholders(factory, values)(an_optimizer(second_lr=0.5))
    assert (scheduler.total_iterations, scheduler.warmup_iterations) == (20, 5)


def test_its_factory_can_be_given_the_numbers() -> None:
    scheduler = CosineLrScheduler.create_scheduler_fn(2, 5, num_cooldown_epochs=1)(an_optimizer(second_lr=0.5))
    assert (scheduler.total_iterations, scheduler.num_cooldown_iterations) == (10, 5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"total_num_epochs": 0}, "total_num_epochs . num_update_steps_per_epoch must be at least 1, got 0"),
        ({"total_num_epochs": 2, "num_update_steps_per_epoch": 0}, "num_update_steps_per_epoch must be at least 1"),
        ({"total_num_epochs": 2, "lr_min": -1}, "lr_min must be at least 0, got -1"),
        ({"total_num_epochs": 2, "min_lr_ratio": 2}, "min_lr_ratio must be from 0 to 1, got 2"),
        ({"total_num_epochs": 2, "k_decay": 0}, "k_decay must be above 0, got 0"),
        (
            {"total_num_epochs": 3, "num_warmup_epochs": 2, "num_cooldown_epochs": 1},
            "20 steps of warm-up and 10 of cool-down leave nothing of 30 for the cosine; total_num_epochs includes",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^CosineLrScheduler: {message}"):
        cosine(**arguments)
