from typing import Any

import pytest
from torch.utils.data import TensorDataset

from treadle.callback import TrainerCallback
from treadle.callbacks import StepBasedEvaluationCallback
from treadle.errors import ConfigError


class Modes(TrainerCallback):
    """Takes note of the steps of evaluations, and of the mode that each step trains in."""

    def __init__(self) -> None:
        self.evaluated: list[tuple[int, bool]] = []
        self.training: list[bool] = []

    def on_train_step_start(self, trainer: Any, **kwargs: Any) -> None:
        self.training.append(trainer.model.training)

    def on_eval_epoch_end(self, trainer: Any, is_intermediate: bool = False, **kwargs: Any) -> None:
        self.evaluated.append((trainer.progress.step, is_intermediate))


def test_evaluations_come_by_the_step_of_the_run_not_of_the_epoch(make_trainer: Any, data: TensorDataset) -> None:
    modes = Modes()
    trainer = make_trainer(StepBasedEvaluationCallback(3), modes)
    trainer.train(data, num_epochs=2, eval_dataset=data)
    assert modes.evaluated == [(3, True), (4, False), (6, True), (8, False)]


def test_training_goes_on_in_training_mode(make_trainer: Any, data: TensorDataset) -> None:
    modes = Modes()
    make_trainer(StepBasedEvaluationCallback(1), modes).train(data, num_epochs=2, eval_dataset=data)
    assert modes.training == [True] * 8


def test_the_results_stay_in_the_history(make_trainer: Any, data: TensorDataset) -> None:
    result = make_trainer(StepBasedEvaluationCallback(2)).train(data, num_epochs=1, eval_dataset=data)
    assert len(result.history["eval_loss_epoch"]) == 3


def test_nothing_to_evaluate_on_is_said_before_the_first_step(make_trainer: Any, data: TensorDataset) -> None:
    trainer = make_trainer(StepBasedEvaluationCallback(2))
    with pytest.raises(ConfigError, match="StepBasedEvaluationCallback has nothing to evaluate on; pass eval_dataset="):
        trainer.train(data, num_epochs=1)


def test_a_number_of_steps_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="StepBasedEvaluationCallback: eval_every_n_steps=0 must be at least 1"):
        StepBasedEvaluationCallback(0)
