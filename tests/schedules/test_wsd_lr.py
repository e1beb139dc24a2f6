"""`WSDLrScheduler`: the arguments of pytorch-accelerated, with its counter saved and its checkpoints in place."""

import itertools
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.optim import SGD

from tests.schedules.optimizers import an_optimizer, rates
from treadle.errors import CheckpointError, ConfigError
from treadle.schedules import WSDLrScheduler, estimate_checkpoint_steps
from treadle.schedules.placeholders import replace_placeholders

# The same examples in every run, and no example is too slow on a busy machine.
deterministic = settings(derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
Jump = Callable[[Callable[[float], float], int, int], float]


def wsd(**arguments: Any) -> WSDLrScheduler:
    return WSDLrScheduler(an_optimizer(second_lr=0.5), **arguments)


@pytest.mark.parametrize(
    ("total", "number", "expected"),
    [
        (100, 1, [100]),
        (100_000, 2, [50_000, 100_000]),
        (200_000, 3, [50_000, 100_000, 200_000]),
        (200_000, 4, [25_000, 50_000, 100_000, 200_000]),
    ],
)
def test_the_last_checkpoint_is_the_end_and_each_other_half_of_the_next(
    total: int, number: int, expected: list[int]
) -> None:
    assert estimate_checkpoint_steps(total, number) == expected
    assert wsd(total_steps=total, num_checkpoints=number).get_checkpoint_steps() == expected


def test_the_rate_is_stable_and_then_decays_as_one_minus_a_square_root() -> None:
    expected = [1.0] * 9 + [0.1 + 0.9 * (1 - math.sqrt(step / 8)) for step in range(1, 8)]
    assert rates(wsd(total_steps=16, decay_phase_ratio=0.5, lr_min=0.1), 18) == pytest.approx([*expected, 0.1, 0.1])


def test_one_epoch_is_long_enough() -> None:
    one = wsd(num_epochs=1, num_update_steps_per_epoch=10, num_checkpoints=1, num_warmup_steps=0)
    assert rates(one, 10) == rates(wsd(total_steps=10, num_checkpoints=1, num_warmup_steps=0), 10)


def test_the_other_decay_lets_the_inverse_grow_in_a_straight_line() -> None:
    scheduler = wsd(total_steps=8, decay_phase_ratio=0.5, lr_min=0.2, use_inverse_sqrt_decay=False)
    assert rates(scheduler, 9)[4:] == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4, 1 / 5])


def test_a_warm_up_starts_at_its_rate_in_the_first_update() -> None:
    scheduler = wsd(total_steps=100, num_warmup_steps=4, warmup_starting_lr=0.2)
    assert rates(scheduler, 6) == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])


@pytest.mark.parametrize(("length", "warmup"), [(1000, 10), (570, 5), (99, 0)])
def test_no_number_of_warm_up_steps_means_a_hundredth_of_the_length(length: int, warmup: int) -> None:
    """As pytorch-accelerated 0.1.61 has it: int(0.01 * total_steps)."""
    assert wsd(total_steps=length, num_warmup_steps=None).num_warmup_steps == warmup


def test_the_rates_of_a_default_warm_up_are_those_of_pytorch_accelerated() -> None:
    """The numbers were read from its WSDLrScheduler, version 0.1.61, with these arguments."""
    scheduler = wsd(total_steps=400, num_warmup_steps=None)
    assert rates(scheduler, 6) == pytest.approx([1e-06, 0.25000075, 0.5000005, 0.75000025, 1.0, 1.0], abs=1e-12)


def test_a_default_warm_up_never_reaches_into_the_first_decay() -> None:
    scheduler = wsd(total_steps=1600, num_warmup_steps=None, num_checkpoints=8)
    assert scheduler.get_decay_info()[0] == {
        "period_start": 0,
        "period_end": 12,
        "decay_steps": 1,
        "pre_decay_step": 11,
    }
    assert scheduler.num_warmup_steps == 11


def test_the_next_period_starts_at_the_base_rate_again() -> None:
    scheduler = wsd(total_steps=40, num_checkpoints=2, decay_phase_ratio=0.2, lr_min=0.0)
    seen = rates(scheduler, 41)
    assert seen[:17] == [1.0] * 17
    assert seen[17:20] == pytest.approx([1 - math.sqrt(step / 4) for step in (1, 2, 3)])
    assert seen[20:37] == [1.0] * 17
    assert seen[40] == 0.0


def test_where_it_is_can_be_asked() -> None:
    scheduler = wsd(total_steps=40, num_checkpoints=2, decay_phase_ratio=0.2)
    first, second = scheduler.get_decay_info()
    assert second == {"period_start": 20, "period_end": 40, "decay_steps": 4, "pre_decay_step": 36}
    assert [scheduler.get_phase_info(step) for step in (0, 20, 21, 40, 99)] == [first, first, second, second, second]
    rates(scheduler, 25)
    assert scheduler.get_current_step() == 25
    assert scheduler.get_current_phase_info() == second


@deterministic
@given(
    total=st.integers(8, 60),
    checkpoints=st.integers(1, 3),
    decay=st.floats(0, 1),
    warmup=st.none() | st.floats(0, 1),
    lr_min=st.floats(1e-3, 1),
    square_root=st.booleans(),
)
def test_it_jumps_only_from_a_checkpoint_to_the_next_period(
    largest_jump: Jump,
    total: int,
    checkpoints: int,
    decay: float,
    warmup: float | None,
    lr_min: float,
    square_root: bool,
) -> None:
    arguments: dict[str, Any] = {
        "total_steps": total,
        "num_checkpoints": checkpoints,
        "decay_phase_ratio": decay,
        "lr_min": lr_min,
        "use_inverse_sqrt_decay": square_root,
    }
    stable = wsd(**arguments).get_decay_info()[0]["pre_decay_step"]
    scheduler = wsd(**arguments, num_warmup_steps=None if warmup is None else int(warmup * stable))
    ends = [0, *scheduler.get_checkpoint_steps()]
    for start, end in itertools.pairwise(ends):
        reaches_end = end if end == total else end - 1
        if reaches_end > start:
            assert largest_jump(lambda step: scheduler.value(step, 0.7), start, reaches_end) < 1e-4
    assert largest_jump(lambda step: scheduler.value(step, 0.7), total - 1, total + 3) < 1e-4


@pytest.mark.parametrize("number", [1, 2])
def test_it_resumes_at_any_step_exactly(number: int) -> None:
    arguments = {"total_steps": 32, "num_checkpoints": number, "num_warmup_steps": 3, "decay_phase_ratio": 0.25}
    uninterrupted = rates(wsd(**arguments), 35)
    for step in range(35):
        interrupted = wsd(**arguments)
        rates(interrupted, step)
        resumed = wsd(**arguments)
        resumed.load_state_dict(json.loads(json.dumps(interrupted.state_dict())))
        assert resumed.get_current_step() == step
        assert rates(resumed, 35 - step) == uninterrupted[step:]


def test_a_state_without_a_count_is_refused() -> None:
    # As the library that the names come from saved it: there was no way to know the position.
    with pytest.raises(CheckpointError, match="this state of WSDLrScheduler has no 'num_updates'"):
        wsd(total_steps=10).load_state_dict({"total_steps": 10, "num_warmup_steps": 0})


def test_a_continuation_begins_a_new_stable_phase_without_warm_up() -> None:
    first = wsd(total_steps=20, num_warmup_steps=4)
    rates(first, 18)
    continued = wsd(total_steps=10, num_warmup_steps=4, lr_min=0.0, is_continuation_from_checkpoint=True)
    continued.load_state_dict(first.state_dict())
    assert continued.get_current_step() == 0
    assert rates(continued, 11) == [1.0] * 10 + [0.0]


def test_an_interrupted_continuation_resumes_where_it_stood() -> None:
    arguments = {"total_steps": 10, "is_continuation_from_checkpoint": True, "decay_phase_ratio": 0.5}
    continued = wsd(**arguments)
    rates(continued, 7)
    resumed = wsd(**arguments)
    resumed.load_state_dict(continued.state_dict())
    assert resumed.get_current_step() == 7
    assert rates(resumed, 5) == rates(continued, 5)


def test_a_continuation_can_be_continued_once_more() -> None:
    arguments = {"total_steps": 10, "is_continuation_from_checkpoint": True}
    continued = wsd(**arguments)
    rates(continued, 10)
    longer = wsd(total_steps=30, is_continuation_from_checkpoint=True)
    longer.load_state_dict(continued.state_dict())
    assert longer.get_current_step() == 0
    again = wsd(**arguments)
    again.load_state_dict(continued.state_dict())
    again.begin_continuation()
    assert again.get_current_step() == 0
    assert again.get_last_lr() == [1.0, 0.5]


def test_stretching_moves_the_checkpoints() -> None:
    scheduler = wsd(total_steps=20, num_checkpoints=2)
    rates(scheduler, 5)
    scheduler.stretch(40)
    assert scheduler.get_checkpoint_steps() == [20, 40]


def test_its_factory_is_sized_by_the_run() -> None:
    values = {"NUM_EPOCHS": 4, "PER_PROCESS_NUM_UPDATE_STEPS_PER_EPOCH": 10}
    optimizer = SGD([torch.zeros(1)], lr=1.0)
    scheduler = replace_placeholders(WSDLrScheduler.create_scheduler_fn(num_warmup_epochs=0.5), values)(optimizer)
    assert (scheduler.total_steps, scheduler.num_warmup_steps) == (40, 5)
    values["NUM_EPOCHS"] = 40
    scheduler = replace_placeholders(WSDLrScheduler.create_scheduler_fn(), values)(optimizer)
    assert (scheduler.total_steps, scheduler.num_warmup_steps) == (400, 4)


def test_the_warm_up_of_a_factory_follows_the_steps_per_epoch_it_is_given() -> None:
    factory = WSDLrScheduler.create_scheduler_fn(4, 20, num_warmup_epochs=2)
    assert factory(SGD([torch.zeros(1)], lr=1.0)).num_warmup_steps == 40


def test_a_decay_ratio_of_zero_never_decays() -> None:
    assert rates(wsd(total_steps=4, decay_phase_ratio=0.0), 7) == [1.0] * 7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "WSDLrScheduler takes either total_steps, or num_epochs with num_update_steps_per_epoch"),
        ({"num_epochs": 3}, "got total_steps=None, num_epochs=3, num_update_steps_per_epoch=None"),
        ({"num_epochs": 3, "num_update_steps_per_epoch": 5, "total_steps": 15}, "takes either total_steps, or"),
        ({"total_steps": 0}, "WSDLrScheduler: total_steps must be at least 1, got 0"),
        ({"total_steps": 9, "decay_phase_ratio": 1.5}, "decay_phase_ratio must be from 0 to 1, got 1.5"),
        ({"total_steps": 9, "lr_min": -0.1}, "lr_min must be from 0 to 1, got -0.1"),
        ({"total_steps": 9, "lr_min": 0, "use_inverse_sqrt_decay": False}, "lr_min must be above 0, got 0"),
        ({"total_steps": 9, "num_checkpoints": 0}, "num_checkpoints must be at least 1, got 0"),
        ({"total_steps": 9, "num_checkpoints": 5}, "9 steps are too few for num_checkpoints=5"),
        ({"total_steps": 9, "num_warmup_steps": -1}, "num_warmup_steps must be at least 0, got -1"),
        ({"total_steps": 20, "num_warmup_steps": 19}, "num_warmup_steps=19 is longer than the 18 steps before"),
        (
            {"total_steps": 20, "num_warmup_steps": 2, "warmup_starting_lr": 3.0},
            "warmup_starting_lr=3.0 is above the highest base rate, 1.0",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        wsd(**arguments)
