"""A schedule takes up where it stopped, and can be given another length."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.schedules.optimizers import an_optimizer
from treadle.errors import ConfigError
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
from treadle.schedules.family import ShapedSchedule

# The same examples in every run, and no example is too slow on a busy machine.
deterministic = settings(derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
Factory = Callable[[torch.optim.Optimizer], ShapedSchedule]


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
