"""The numbers of a run, worked out of what a config asks for."""

from typing import Any

import pytest

from treadle.config import ConfigDict, get_config
from treadle.config.resolution import (
    resolve_batch_sizes,
    resolve_iterations,
    resolve_milestones,
    resolve_period,
    resolve_train,
)
from treadle.errors import ConfigError


def message(function: Any, *arguments: Any, **keywords: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        function(*arguments, **keywords)
    return str(caught.value)


def test_iterations_that_cannot_be_meant_are_refused() -> None:
    assert message(resolve_iterations, 0, 0, 10, 1) == "train_iter=0 and train_epoch=0: there is nothing to train"
    assert message(resolve_iterations, -1, 0, 10, 1) == "train_iter=-1 must be a whole number from 0 up"
    assert message(resolve_iterations, 1, -1, 10, 1) == "train_epoch=-1 must be a number from 0 up"
    assert message(resolve_iterations, 1, 2, 0, 1) == "the length of the data=0 must be a whole number from 1 up"
    assert message(resolve_iterations, 1, 2, None, 1) == (
        "train_epoch=2 needs data with a length, and this has none; count in iterations instead"
    )
    assert resolve_iterations(7, 0, None, 1) == 7


def test_epochs_of_a_decimal_length_count_as_written() -> None:
    assert resolve_iterations(0, 0.07, dataset_length=100, global_batch_size=1) == 7


def test_data_parallel_size_must_be_a_number() -> None:
    assert message(resolve_batch_sizes, 1, None, None, 0) == "data_parallel_size=0 must be a whole number from 1 up"


def test_milestones_are_shares_of_the_run_or_iterations() -> None:
    assert resolve_milestones([0.07, 0.5], 100) == [7, 50]
    assert resolve_milestones([7, 50], 100) == [7, 50]
    assert resolve_milestones([0, 0.5], 100) == [0, 50]
    assert resolve_milestones([], 100) == []


def test_milestones_that_fall_or_mix_are_refused() -> None:
    assert message(resolve_milestones, [0.5, 0.2], 100) == (
        "milestones=[0.5, 0.2] of 100 iterations lie at [50, 20]; they must rise"
    )
    assert message(resolve_milestones, [0.1, 0.11], 10) == (
        "milestones=[0.1, 0.11] of 10 iterations lie at [1, 1]; they must rise"
    )
    assert message(resolve_milestones, [0.5, 60], 100) == (
        "milestones=60 must be from 0 up to, but not including, 1: a share of the whole run"
    )


def test_periods_in_epochs_are_at_least_one_iteration_each() -> None:
    assert resolve_period("n", 3, 5000, dataset_length=1000, global_batch_size=100) == 30
    assert resolve_period("n", 3, 5000, dataset_length=5, global_batch_size=100) == 3
    assert resolve_period("n", None, 5000, dataset_length=None, global_batch_size=100) == 5000
    assert message(resolve_period, "n", 0, 5, 10, 1) == "n=0 must be a whole number from 1 up"
    assert message(resolve_period, "n", 1, 5, None, 1) == (
        "n=1 needs data with a length, and this has none; count in iterations instead"
    )


def test_a_whole_train_config_is_resolved_without_touching_the_one_given() -> None:
    train = get_config("common/train.py").train
    train.update(
        train_micro_batch_size=8,
        global_batch_size=64,
        train_iter=0,
        train_epoch=2,
        warmup_ratio=0.1,
        evaluation={"eval_after_n_epoch": 1},
        checkpointer={"save_model_after_n_epoch": 2},
        scheduler=get_config("common/schedule.py").WarmupMultiStepLR,
    )
    train.scheduler.milestones = (0.5, 0.75)
    resolved = resolve_train(train, data_parallel_size=4, dataset_length=640)
    assert (resolved.num_accumulation_steps, resolved.train_iter) == (2, 20)
    assert (resolved.evaluation.eval_period, resolved.checkpointer.period) == (10, 20)
    assert (resolved.scheduler.max_iter, resolved.scheduler.warmup_iter) == (20, 2)
    assert resolved.scheduler.milestones == [10, 15]
    assert train.num_accumulation_steps is None
    assert "max_iter" not in train.scheduler
    assert resolve_train(resolved, data_parallel_size=4, dataset_length=640) == resolved


def test_a_run_without_a_schedule_is_resolved_too() -> None:
    train = get_config("common/train.py").train
    train.scheduler = None
    assert resolve_train(ConfigDict(train), data_parallel_size=1, dataset_length=None).scheduler is None
