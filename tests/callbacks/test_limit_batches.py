import os
from functools import partial
from typing import Any

import pytest
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import TensorDataset

from treadle import TrainerPlaceholderValues
from treadle.callback import TrainerCallback
from treadle.callbacks import LimitBatches, LimitBatchesCallback
from treadle.callbacks.limit_batches import ENVIRONMENT_VARIABLE, active_limit
from treadle.errors import ConfigError


class Counting(TrainerCallback):
    def __init__(self) -> None:
        self.train = self.eval = 0

    def on_train_step_end(self, trainer: Any, **kwargs: Any) -> None:
        self.train += 1

    def on_eval_step_end(self, trainer: Any, **kwargs: Any) -> None:
        self.eval += 1


def test_d34_at_most_so_many_train_and_eval_batches_run_in_an_epoch(make_trainer: Any, data: TensorDataset) -> None:
    counting = Counting()
    trainer = make_trainer(LimitBatchesCallback(3), counting)
    trainer.train(data, num_epochs=2, eval_dataset=data)
    assert (counting.train, counting.eval) == (6, 6)


def test_d34_limit_batches_around_construction_limits_that_trainer_only(make_trainer: Any, data: TensorDataset) -> None:
    inside, outside = Counting(), Counting()
    with LimitBatches(3):
        limited = make_trainer(inside)
    unlimited = make_trainer(outside)
    for trainer in (limited, unlimited):
        trainer.train(data, num_epochs=1, eval_dataset=data)
    assert (inside.train, inside.eval) == (3, 3)
    assert (outside.train, outside.eval) == (4, 4)


def test_schedule_and_settings_are_sized_by_the_limit(make_trainer: Any, data: TensorDataset) -> None:
    trainer = make_trainer(LimitBatchesCallback(3))
    schedule = partial(
        OneCycleLR,
        max_lr=0.1,
        epochs=TrainerPlaceholderValues.NUM_EPOCHS,
        steps_per_epoch=TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH,
    )
    trainer.train(data, num_epochs=2, create_scheduler_fn=schedule)
    assert trainer.run_config.num_update_steps_per_epoch == 3
    assert trainer.scheduler.total_steps == 6


def test_a_limit_above_the_length_changes_nothing(make_trainer: Any, data: TensorDataset) -> None:
    trainer = make_trainer(LimitBatchesCallback(100))
    assert trainer.train(data, num_epochs=1).steps == 4


def test_the_smaller_of_two_limits_holds(make_trainer: Any, data: TensorDataset) -> None:
    with LimitBatches(2):
        assert make_trainer(LimitBatchesCallback(3)).train(data, num_epochs=1).steps == 2
        assert make_trainer(LimitBatchesCallback(1)).train(data, num_epochs=1).steps == 1


def test_the_context_manager_can_be_nested_and_reused_and_leaves_nothing_behind() -> None:
    limit = LimitBatches(2)
    with limit:
        with LimitBatches(5), limit:
            assert active_limit() == 2
        assert active_limit() == 2
    assert active_limit() is None
    assert ENVIRONMENT_VARIABLE not in os.environ


def test_none_in_the_environment_is_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "none")
    assert active_limit() is None
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "7")
    assert active_limit() == 7


@pytest.mark.parametrize("text", ["many", "0", "-2", "1.5"])
def test_anything_else_in_the_environment_is_an_error(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, text)
    with pytest.raises(ConfigError, match=r"the environment variable TREADLE_LIMIT_BATCHES=.* must be a whole number"):
        active_limit()


@pytest.mark.parametrize("limit", [LimitBatches, LimitBatchesCallback])
@pytest.mark.parametrize("value", [0, -1, 1.5, True])
def test_a_limit_that_is_no_number_above_zero_is_refused(limit: Any, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{limit.__name__}: num_batches={value} must be a whole number above 0"):
        limit(value)
