import math
from typing import Any

import pytest
from torch.utils.data import TensorDataset

from treadle.callbacks import EarlyStoppingCallback, SaveBestModelCallback, WatchesMetric
from treadle.errors import ConfigError, UnknownMetricError


class Watching(WatchesMetric):
    """Collects the values it is shown."""

    def __init__(self, watch_metric: str = "score", **kwargs: Any) -> None:
        super().__init__(watch_metric, greater_is_better=True, **kwargs)
        self.values: list[float] = []

    def new_value(self, trainer: Any, value: float) -> None:
        self.values.append(value)
        if self.is_better(value):
            self.best_metric = value


def test_every_epoch_that_reports_a_value_is_looked_at_once(make_trainer: Any, data: TensorDataset) -> None:
    watch = Watching()
    make_trainer(watch, scores=[1.0, 2.0, 3.0]).train(data, num_epochs=3, eval_dataset=data)
    assert watch.values == [1.0, 2.0, 3.0]


def test_evaluations_by_step_are_looked_at_when_they_end(make_trainer: Any, data: TensorDataset) -> None:
    watch = Watching()
    trainer = make_trainer(watch, scores=[1.0, 2.0, 3.0, 4.0])
    trainer.train(data, num_epochs=2, eval_dataset=data, eval_every="2 steps")
    assert watch.values == [1.0, 2.0, 3.0, 4.0]


def test_epochs_without_an_evaluation_are_passed_over(make_trainer: Any, data: TensorDataset) -> None:
    watch = Watching()
    trainer = make_trainer(watch, scores=[1.0, 2.0])
    trainer.train(data, num_epochs=4, eval_dataset=data, eval_every="2 epochs")
    assert watch.values == [1.0, 2.0]


def test_nan_is_never_better() -> None:
    watch = Watching()
    assert not watch.is_better(math.nan)
    watch.best_metric = 1.0
    assert not watch.is_better(math.nan)
    assert watch.is_better(2.0)
    assert not watch.is_better(1.0)


def test_values_of_an_earlier_run_are_not_new(make_trainer: Any, data: TensorDataset) -> None:
    watch = Watching()
    trainer = make_trainer(watch, scores=[5.0, 1.0])
    trainer.train(data, num_epochs=1, eval_dataset=data)
    trainer.train(data, num_epochs=1, eval_dataset=data, reset_run_history=False)
    assert watch.values == [5.0, 1.0]
    assert watch.best_metric == 1.0


def test_the_best_of_an_earlier_run_stays_if_asked(make_trainer: Any, data: TensorDataset) -> None:
    watch = Watching(reset_on_train=False)
    trainer = make_trainer(watch, scores=[5.0, 1.0])
    trainer.train(data, num_epochs=1, eval_dataset=data)
    trainer.train(data, num_epochs=1, eval_dataset=data)
    assert watch.best_metric == 5.0


@pytest.mark.parametrize(("greater", "said"), [(False, True), (True, False)])
def test_a_metric_that_should_rise_and_is_wanted_small_is_told(
    greater: bool, said: bool, make_trainer: Any, data: TensorDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    stops = EarlyStoppingCallback(watch_metric="score", greater_is_better=greater)
    make_trainer(stops, scores=[1.0]).train(data, num_epochs=1, eval_dataset=data)
    line = "EarlyStopping takes the smallest score for the best; greater_is_better=True takes the largest\n"
    assert (line in capsys.readouterr().out) is said


def test_a_metric_that_nothing_reports_is_named_with_those_that_were(make_trainer: Any, data: TensorDataset) -> None:
    trainer = make_trainer(EarlyStoppingCallback(watch_metric="scores"), scores=[1.0])
    with pytest.raises(UnknownMetricError) as caught:
        trainer.train(data, num_epochs=1, eval_dataset=data)
    assert str(caught.value) == (
        "EarlyStopping watches 'scores', but evaluation reported ['score', 'eval_loss_epoch', 'train_loss_epoch']; "
        "set watch_metric= to one of these"
    )


def test_a_missing_metric_without_any_evaluation_is_named_too(make_trainer: Any, data: TensorDataset) -> None:
    trainer = make_trainer(EarlyStoppingCallback(watch_metric="auc"))
    with pytest.raises(UnknownMetricError, match=r"watches 'auc', but .* reported \['train_loss_epoch'\]"):
        trainer.train(data, num_epochs=1)


@pytest.mark.parametrize("callback", [EarlyStoppingCallback, SaveBestModelCallback])
def test_watching_the_evaluation_without_evaluation_data_fails_before_the_first_step(
    make_trainer: Any, data: TensorDataset, callback: Any
) -> None:
    trainer = make_trainer(callback)
    with pytest.raises(UnknownMetricError) as caught:
        trainer.train(data, num_epochs=1)
    name = callback.__name__.removesuffix("Callback")
    assert str(caught.value) == (
        f"{name} watches 'eval_loss_epoch', but this run has no evaluation data; "
        "pass eval_dataset= to train(), or set watch_metric='train_loss_epoch'"
    )
    assert trainer.progress.step == 0


def test_a_metric_that_is_no_number_cannot_be_watched(make_trainer: Any, data: TensorDataset) -> None:
    trainer = make_trainer(EarlyStoppingCallback(watch_metric="score"), scores=[[1.0, 2.0]])
    with pytest.raises(ConfigError, match="EarlyStopping watches 'score', which is a list; watch a single number"):
        trainer.train(data, num_epochs=1, eval_dataset=data)


def test_a_metric_of_training_can_be_watched_without_evaluation_data(make_trainer: Any, data: TensorDataset) -> None:
    watch = Watching("train_loss_epoch")
    trainer = make_trainer(watch)
    trainer.train(data, num_epochs=2)
    assert watch.values == trainer.run_history.get_metric_values("train_loss_epoch")
