"""Which losses and metrics a run records, under which names and with which values."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset
from torchmetrics import MeanAbsoluteError

from treadle.callback import TrainerCallback
from treadle.errors import UnknownMetricError
from treadle.trainer import Trainer


def mean_squared_error(model: nn.Module, data: TensorDataset) -> float:
    inputs, targets = data.tensors
    with torch.no_grad():
        return float(((model(inputs) - targets) ** 2).double().mean())


def test_d09_a_pair_gives_the_loss_of_outputs_and_targets_and_the_number_of_targets(make_trainer: Any) -> None:
    trainer = make_trainer()
    inputs, targets = torch.ones(5, 2), torch.zeros(5, 1)
    for verb in (trainer.calculate_train_batch_loss, trainer.calculate_eval_batch_loss):
        output = verb((inputs, targets, "what comes after the targets is not looked at"))
        assert torch.equal(output["model_outputs"], trainer.model(inputs))
        assert torch.equal(output["loss"], nn.functional.mse_loss(trainer.model(inputs), targets))
        assert output["batch_size"] == 5


def test_d10_the_loss_of_an_epoch_is_the_mean_over_samples_not_over_batches(
    make_trainer: Any, ragged: TensorDataset
) -> None:
    trainer = make_trainer(lr=0.0)
    history = trainer.train(ragged, 1, eval_dataset=ragged).history
    expected = mean_squared_error(trainer.model, ragged)
    assert history["train_loss_epoch"] == [pytest.approx(expected, rel=1e-6)]
    assert history["eval_loss_epoch"] == [pytest.approx(expected, rel=1e-6)]
    assert trainer.evaluate(ragged)["evaluation_loss"] == pytest.approx(expected, rel=1e-6)


def test_d11_losses_have_these_names_and_no_others(make_trainer: Any, data: TensorDataset) -> None:
    trainer = make_trainer()
    assert set(trainer.train(data, 1).history) == {"train_loss_epoch"}
    assert set(trainer.train(data, 1, eval_dataset=data).history) == {"train_loss_epoch", "eval_loss_epoch"}
    assert set(trainer.evaluate(data)) == {"evaluation_loss"}
    assert trainer.run_history.get_metric_names() == {"train_loss_epoch", "eval_loss_epoch", "evaluation_loss"}


def test_d11_metrics_of_an_evaluation_by_itself_are_recorded_under_names_of_their_own(
    make_trainer: Any, data: TensorDataset
) -> None:
    trainer = make_trainer(lr=0.0, metrics={"error": MeanAbsoluteError()})
    history = trainer.train(data, 1, eval_dataset=data).history
    results = trainer.evaluate(data)
    assert results.keys() == {"evaluation_loss", "error"}
    assert results["error"] == history["error"][0] == trainer.run_history.get_latest_metric("evaluation_error")
    assert trainer.run_history.get_metric_values("error") == history["error"]


class Scoring(Trainer):
    def eval_epoch_end(self) -> None:
        self.run_history.update_metric("score", torch.tensor(0.75))


def test_d13_what_eval_epoch_end_records_is_visible_to_callbacks_of_that_epoch(
    make_trainer: Any, data: TensorDataset
) -> None:
    seen: list[float] = []

    class Reads(TrainerCallback):
        def on_eval_epoch_end(self, trainer: Any, **kwargs: Any) -> None:
            seen.append(trainer.run_history.get_latest_metric("score"))
            seen.append(trainer.run_history.get_latest_metric("eval_loss_epoch"))

    history = make_trainer(Reads, kind=Scoring).train(data, 1, eval_dataset=data).history
    assert seen == [0.75, history["eval_loss_epoch"][0]]


def test_d14_a_prefix_goes_before_the_names_recorded_from_then_on(make_trainer: Any, data: TensorDataset) -> None:
    trainer = make_trainer(kind=Scoring, metrics={"error": MeanAbsoluteError()})
    trainer.run_history.set_metric_name_prefix("copy_")
    assert set(trainer.train(data, 1, eval_dataset=data).history) == {
        "copy_train_loss_epoch",
        "copy_eval_loss_epoch",
        "copy_score",
        "copy_error",
    }
    trainer.run_history.set_metric_name_prefix()
    trainer.run_history.update_metric("score", 1.0)
    assert trainer.run_history.get_latest_metric("score") == 1.0


def test_d15_the_latest_value_of_an_unknown_metric_is_an_error_that_leaves_no_trace(
    make_trainer: Any, data: TensorDataset
) -> None:
    trainer = make_trainer()
    trainer.train(data, 1)
    with pytest.raises(ValueError, match="did you mean 'train_loss_epoch'"):
        trainer.run_history.get_latest_metric("train_loss_epochs")
    with pytest.raises(UnknownMetricError):
        trainer.run_history.get_latest_metric("train_loss_epochs")
    assert trainer.run_history.get_metric_values("train_loss_epochs") == []
    assert trainer.run_history.get_metric_names() == {"train_loss_epoch"}


@pytest.mark.parametrize("accumulation", [1, 2, 3])
def test_a37_neither_the_loss_of_the_epoch_nor_that_of_a_callback_is_divided_by_the_accumulation(
    make_trainer: Any, data: TensorDataset, accumulation: int
) -> None:
    seen: list[torch.Tensor] = []

    class Reads(TrainerCallback):
        def on_train_step_end(self, trainer: Any, batch_output: Any = None, **kwargs: Any) -> None:
            seen.append(batch_output["loss"].detach())

    trainer = make_trainer(Reads, lr=0.0)
    history = trainer.train(data, 1, gradient_accumulation_steps=accumulation).history
    expected = mean_squared_error(trainer.model, data)
    assert history["train_loss_epoch"] == [pytest.approx(expected, rel=1e-6)]
    assert float(torch.stack(seen).double().mean()) == pytest.approx(expected, rel=1e-6)
