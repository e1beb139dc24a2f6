"""What cannot be meant is refused when the schedule is built, and says so."""

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch

from tests.schedules.optimizers import an_optimizer
from treadle.errors import ConfigError
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
from treadle.schedules.placeholders import TrainerPlaceholderValues as P

Factory = Callable[[torch.optim.Optimizer], ShapedSchedule]


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
