"""Treadle's own schedules, shape by shape: hand calculations, and the schedulers of torch as a reference."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.optim import SGD, lr_scheduler

from tests.schedules.optimizers import an_optimizer
from treadle.schedules import (
    ConstantSchedule,
    CosineSchedule,
    ExponentialSchedule,
    LinearSchedule,
    PolynomialSchedule,
    StepSchedule,
)
from treadle.schedules.family import ShapedSchedule
from treadle.schedules.placeholders import TrainerPlaceholderValues as P
from treadle.schedules.placeholders import replace_placeholders

Factory = Callable[[torch.optim.Optimizer], ShapedSchedule]


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
