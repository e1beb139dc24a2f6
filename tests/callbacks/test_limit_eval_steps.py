from typing import Any

import pytest
from torch.utils.data import TensorDataset

from treadle.callback import TrainerCallback
from treadle.callbacks import LimitBatchesCallback, LimitEvalStepsCallback, StepBasedEvaluationCallback
from treadle.errors import ConfigError


class Lengths(TrainerCallback):
    """Takes note of how many batches each evaluation had."""

    def __init__(self) -> None:
        self.lengths: list[int] = []

    def on_eval_epoch_start(self, trainer: Any, **kwargs: Any) -> None:
        self.lengths.append(0)

    def on_eval_step_end(self, trainer: Any, **kwargs: Any) -> None:
        self.lengths[-1] += 1


def test_only_evaluations_within_an_epoch_are_cut_short(make_trainer: Any, data: TensorDataset) -> None:
    lengths = Lengths()
    trainer = make_trainer(LimitEvalStepsCallback(2), StepBasedEvaluationCallback(3), lengths)
    trainer.train(data, num_epochs=1, eval_dataset=data)
    assert lengths.lengths == [2, 4]


def test_all_evaluations_are_cut_short_if_told_so(make_trainer: Any, data: TensorDataset) -> None:
    lengths = Lengths()
    trainer = make_trainer(LimitEvalStepsCallback(2, limit_intermediate_only=False), lengths)
    trainer.train(data, num_epochs=2, eval_dataset=data)
    trainer.evaluate(data)
    assert lengths.lengths == [2, 2, 2]


def test_a_smaller_limit_stays_and_is_given_back(make_trainer: Any, data: TensorDataset) -> None:
    lengths = Lengths()
    callbacks = (LimitBatchesCallback(1), LimitEvalStepsCallback(3, limit_intermediate_only=False), lengths)
    trainer = make_trainer(*callbacks)
    trainer.train(data, num_epochs=1, eval_dataset=data)
    assert lengths.lengths == [1]
    assert trainer._eval_dataloader.limit == 1


def test_the_limit_is_given_back_when_an_evaluation_is_broken_off(make_trainer: Any, data: TensorDataset) -> None:
    class Failing(TrainerCallback):
        def on_eval_step_end(self, trainer: Any, **kwargs: Any) -> None:
            raise RuntimeError("broken")

    trainer = make_trainer(LimitEvalStepsCallback(2, limit_intermediate_only=False), Failing)
    with pytest.raises(RuntimeError, match="broken"):
        trainer.evaluate(data)
    assert trainer._eval_dataloader.limit is None


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="LimitEvalStepsCallback: num_eval_steps=0 must be at least 1"):
        LimitEvalStepsCallback(0)
