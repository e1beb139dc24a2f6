from typing import Any

import pytest
from torch.utils.data import TensorDataset

from treadle.callback import TrainerCallback
from treadle.callbacks import LogMetricsCallback, ModelEmaCallback, PrintProgressCallback


class Collecting(LogMetricsCallback):
    """Collects what it is given instead of printing it."""

    def __init__(self) -> None:
        super().__init__()
        self.logged: list[list[str]] = []

    def log_metrics(self, trainer: Any, metrics: dict[str, Any]) -> None:
        self.logged.append(list(metrics))


class Recording(TrainerCallback):
    """Records a metric at the end of training epochs, under a name that contains "train"."""

    def on_train_epoch_end(self, trainer: Any, **kwargs: Any) -> None:
        trainer.run_history.update_metric("constraint_violation", 1)


def test_metrics_of_training_come_after_training_and_all_others_after_the_evaluation(
    make_trainer: Any, data: TensorDataset
) -> None:
    log = Collecting()
    make_trainer(log, scores=[1.0, 2.0]).train(data, num_epochs=2, eval_dataset=data)
    assert log.logged == [["train_loss_epoch"], ["eval_loss_epoch", "score"]] * 2


def test_a_name_that_only_contains_train_is_no_metric_of_training(make_trainer: Any, data: TensorDataset) -> None:
    log = Collecting()
    make_trainer(Recording, log).train(data, num_epochs=1, eval_dataset=data)
    assert log.logged == [["train_loss_epoch"], ["constraint_violation", "eval_loss_epoch"]]


def test_without_an_evaluation_the_others_come_at_the_end_of_the_epoch(make_trainer: Any, data: TensorDataset) -> None:
    log = Collecting()
    make_trainer(Recording, log).train(data, num_epochs=1)
    assert log.logged == [["train_loss_epoch"], ["constraint_violation"]]


def test_a_metric_without_a_new_value_is_not_shown_again(make_trainer: Any, data: TensorDataset) -> None:
    log = Collecting()
    make_trainer(log, scores=[1.0]).train(data, num_epochs=2, eval_dataset=data)
    assert log.logged[1] == ["eval_loss_epoch", "score"]
    assert log.logged[3] == ["eval_loss_epoch"]


def test_every_run_is_shown_whether_or_not_the_history_is_kept(make_trainer: Any, data: TensorDataset) -> None:
    for keep in (True, False):
        log = Collecting()
        trainer = make_trainer(log)
        trainer.train(data, num_epochs=1)
        trainer.train(data, num_epochs=1, reset_run_history=not keep)
        assert log.logged == [["train_loss_epoch"], ["train_loss_epoch"]]


def test_an_evaluation_by_itself_shows_its_own_metrics_only(make_trainer: Any, data: TensorDataset) -> None:
    log = Collecting()
    trainer = make_trainer(log)
    trainer.train(data, num_epochs=1)
    trainer.evaluate(data)
    assert log.logged == [["train_loss_epoch"], ["evaluation_loss"]]


def test_for_an_average_only_metrics_with_its_prefix_are_shown(
    make_trainer: Any, data: TensorDataset, tmp_path: Any
) -> None:
    log = Collecting()
    ema = ModelEmaCallback(save_path=tmp_path / "ema.pt", callbacks=[log])
    make_trainer(ema, scores=[1.0, 2.0]).train(data, num_epochs=1, eval_dataset=data)
    assert log.logged == [["ema_model_eval_loss_epoch", "ema_model_score"]]


def test_metrics_are_printed_as_a_line(make_trainer: Any, capsys: pytest.CaptureFixture[str]) -> None:
    LogMetricsCallback().log_metrics(make_trainer(), {"eval_loss_epoch": 0.481234567, "auc": 1, "name": "x"})
    assert capsys.readouterr().out == "  eval 0.4812  auc 1  name x\n"


def test_metrics_that_the_line_of_an_epoch_has_are_not_printed_again(
    make_trainer: Any, data: TensorDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    make_trainer(PrintProgressCallback, LogMetricsCallback).train(data, num_epochs=2, eval_dataset=data)
    assert capsys.readouterr().out.count("  train ") == 2
