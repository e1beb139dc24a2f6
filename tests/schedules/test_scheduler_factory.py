"""`create_scheduler_fn` takes a factory, and says how to write one when it gets something else."""

from functools import partial
from typing import Any

import pytest
import torch
from torch.optim import SGD, lr_scheduler

from treadle.errors import ConfigError
from treadle.schedules import CosineLrScheduler, CosineSchedule, WSDSchedule, require_factory


def an_optimizer() -> SGD:
    return SGD([torch.zeros(1)], lr=1.0)


@pytest.mark.parametrize(
    "factory",
    [
        partial(lr_scheduler.StepLR, step_size=3),
        lr_scheduler.ReduceLROnPlateau,
        lambda optimizer: lr_scheduler.StepLR(optimizer, 3),
        CosineLrScheduler.create_scheduler_fn(),
    ],
)
def test_a_factory_is_returned_itself(factory: Any) -> None:
    assert require_factory(factory) is factory


@pytest.mark.parametrize(
    ("create", "factory_form"),
    [
        (partial(lr_scheduler.StepLR, step_size=3), "functools.partial(StepLR, step_size=...)"),
        (partial(lr_scheduler.OneCycleLR, max_lr=1.0, total_steps=9), "functools.partial(OneCycleLR, max_lr=...)"),
        (lr_scheduler.ReduceLROnPlateau, "functools.partial(ReduceLROnPlateau, ...)"),
        (partial(CosineSchedule, total_steps=9), "functools.partial(CosineSchedule, total_steps=...)"),
        (partial(WSDSchedule, decay_steps=3), "functools.partial(WSDSchedule, decay_steps=...)"),
        (
            partial(CosineLrScheduler, total_num_epochs=2, num_update_steps_per_epoch=3),
            "functools.partial(CosineLrScheduler, total_num_epochs=..., num_update_steps_per_epoch=...)",
        ),
    ],
)
def test_an_instance_is_refused_with_the_factory_form_of_its_class(create: Any, factory_form: str) -> None:
    scheduler = create(an_optimizer())
    with pytest.raises(ConfigError) as error:
        require_factory(scheduler)
    name = type(scheduler).__name__
    assert str(error.value) == (
        f"create_scheduler_fn got an instance of {name}; pass a factory instead: {factory_form}"
    )


def test_what_cannot_be_called_is_refused_with_an_example() -> None:
    with pytest.raises(ConfigError, match=r"^scheduler got 3, which cannot be called; .*functools.partial\(StepLR, "):
        require_factory(3, argument="scheduler")
