"""The arguments of `train`, checked together."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

from treadle.errors import ConfigError
from treadle.progress import Cadence
from treadle.spec import RunSpec, one_limit


def settings(**kwargs: Any) -> RunSpec:
    defaults: dict[str, Any] = {
        "num_epochs": 1,
        "max_steps": None,
        "per_device_batch_size": 8,
        "gradient_accumulation_steps": 1,
        "gradient_clip_value": None,
        "clip_norm": None,
        "scheduler_interval": None,
        "scheduler_metric": None,
        "eval_every": Cadence(1, "epochs"),
        "log_every": Cadence(50, "steps"),
        "save_every": None,
        "resume_from": None,
    }
    return RunSpec(**{**defaults, **kwargs}, is_for_training=True)


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)


PLATEAU, STEPS = ReduceLROnPlateau(optimizer()), StepLR(optimizer(), 1)


@pytest.mark.parametrize(
    "limits", [{"num_epochs": 3}, {"num_epochs": None, "max_steps": 5}, {"num_epochs": 3, "max_steps": 5}]
)
def test_one_limit_or_both_are_enough(limits: dict[str, Any]) -> None:
    assert settings(**limits)


def test_no_limit_at_all_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"train\(\) needs a limit; pass num_epochs= or max_steps= \(or both: the sm"):
        settings(num_epochs=None)


@pytest.mark.parametrize("name", ["num_epochs", "max_steps", "per_device_batch_size", "gradient_accumulation_steps"])
@pytest.mark.parametrize("value", [0, -1, 1.0, "2", True, float("nan")])
def test_what_is_counted_must_be_a_whole_number_above_zero(name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(**{name: value})
    assert str(caught.value) == f"{name}={value!r} must be a whole number above 0"


@pytest.mark.parametrize("name", ["gradient_clip_value", "clip_norm"])
@pytest.mark.parametrize("value", [0, -0.5, "1", True, float("nan")])
def test_a_bound_must_be_a_number_above_zero(name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(**{name: value})
    assert str(caught.value) == f"{name}={value!r} must be a number above 0"


@pytest.mark.parametrize("value", [1, 0.5, float("inf")])
def test_a_bound_may_be_any_number_above_zero(value: float) -> None:
    assert settings(clip_norm=value, gradient_clip_value=value).clip_norm == value


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("scheduler_interval", "batch", "scheduler_interval='batch' is unknown; use 'step' or 'epoch'"),
        ("resume", "yes", "resume='yes' is unknown; use 'auto' to resume the run in run_dir"),
        ("extend", "more", "extend='more' is unknown; use 'stretch' or 'hold'"),
    ],
)
def test_a_choice_that_does_not_exist_is_refused_with_those_that_do(name: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(**{name: value})
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("arguments", "scheduler", "expected"),
    [
        ({}, STEPS, "step"),
        ({}, None, "step"),
        ({}, PLATEAU, "epoch"),
        ({"scheduler_metric": "score"}, STEPS, "epoch"),
        ({"scheduler_interval": "epoch"}, STEPS, "epoch"),
        ({"scheduler_interval": "step"}, PLATEAU, "step"),
    ],
)
def test_a_scheduler_moves_by_steps_unless_it_watches_something(
    arguments: dict[str, Any], scheduler: Any, expected: str
) -> None:
    assert settings(**arguments).interval_of(scheduler) == expected


@pytest.mark.parametrize(
    ("metric", "scheduler", "evaluates", "expected"),
    [
        (None, STEPS, True, None),
        (None, PLATEAU, True, "eval_loss_epoch"),
        (None, PLATEAU, False, "train_loss_epoch"),
        ("score", PLATEAU, False, "score"),
        ("score", STEPS, True, "score"),
    ],
)
def test_a_scheduler_that_watches_something_watches_the_loss_unless_told_otherwise(
    metric: str | None, scheduler: Any, evaluates: bool, expected: str | None
) -> None:
    assert settings(scheduler_metric=metric).metric_of(scheduler, evaluates=evaluates) == expected


@pytest.mark.parametrize(("old", "new", "limit"), [(None, None, None), (3, None, 3), (None, 4, 4), (5, 5, 5)])
def test_two_spellings_of_the_step_limit_give_one(old: int | None, new: int | None, limit: int | None) -> None:
    assert one_limit(old, new) == limit


def test_two_step_limits_that_differ_are_refused() -> None:
    with pytest.raises(ConfigError, match="max_steps=4 and max_num_train_steps=3 differ; pass one of them"):
        one_limit(3, 4)
