"""What a run hands back."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import nn

from treadle.callbacks import EarlyStoppingCallback
from treadle.result import BestMetric, TrainResult, find_best
from treadle.trainer import Trainer


@pytest.mark.parametrize(
    ("values", "greater", "expected"),
    [
        ([3.0, 1.0, 2.0], False, (1.0, 1)),
        ([3.0, 1.0, 2.0], True, (3.0, 0)),
        ([1.0, 1.0], False, (1.0, 0)),
        ([2.0, 2.0], True, (2.0, 0)),
        ([math.nan, 5.0, math.nan], False, (5.0, 1)),
        ([math.inf, 5.0], False, (5.0, 1)),
        ([math.inf, 5.0], True, (math.inf, 0)),
        ([1, 2], True, (2.0, 1)),
        ([None, "x", 4.0], True, (4.0, 2)),
        ([0.0, -0.0], False, (0.0, 0)),
    ],
)
def test_the_best_value_is_the_first_of_equals_and_never_nan(
    values: list[Any], greater: bool, expected: tuple[float, int]
) -> None:
    assert find_best("score", values, greater_is_better=greater) == BestMetric("score", *expected)


@pytest.mark.parametrize("values", [[], [math.nan], ["x", None]])
def test_there_is_no_best_of_nothing(values: list[Any]) -> None:
    assert find_best("score", values, greater_is_better=True) is None


def result(**kwargs: Any) -> TrainResult:
    parts = {"history": {}, "best": None, "stop_reason": "done", "epochs": 1, "steps": 2}
    return TrainResult(**{**parts, **kwargs})


def test_the_best_metric_is_a_number_or_none() -> None:
    assert result().best_metric is None
    assert result(best=BestMetric("score", 0.5, 3)).best_metric == 0.5


def test_a_result_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        result().steps = 3  # type: ignore[misc]


def test_a_notebook_shows_the_history_as_a_table() -> None:
    history = {"loss": [0.123456, 2.0], "<b>": ["x<y"]}
    assert result(history=history, stop_reason="a & b")._repr_html_() == (
        "<p>a &amp; b</p><table><tr><th>epoch</th><th>&lt;b&gt;</th><th>loss</th></tr>"
        "<tr><td>1</td><td>x&lt;y</td><td>0.1235</td></tr><tr><td>2</td><td></td><td>2</td></tr></table>"
    )


def test_a_notebook_shows_a_run_without_history() -> None:
    assert result()._repr_html_() == "<p>done</p><table><tr><th>epoch</th></tr></table>"


class Scored(Trainer):
    def eval_epoch_end(self) -> None:
        self.run_history.update_metric("score", [0.25, 0.75, 0.5][self.progress.epoch])


def train(*callbacks: Any, evaluate: bool = True) -> TrainResult:
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    trainer = Scored(
        model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), callbacks=callbacks, device="cpu", seed=0
    )
    data = [(torch.ones(2), torch.zeros(1))] * 8
    return trainer.train(data, 3, eval_dataset=data if evaluate else None)


def test_the_best_of_a_run_is_that_of_its_evaluation_loss_by_default() -> None:
    outcome = train()
    assert outcome.best == find_best("eval_loss_epoch", outcome.history["eval_loss_epoch"], greater_is_better=False)


def test_the_best_of_a_run_without_evaluation_is_that_of_its_training_loss() -> None:
    outcome = train(evaluate=False)
    assert outcome.best is not None
    assert outcome.best.name == "train_loss_epoch"


def test_the_best_of_a_run_is_that_of_the_metric_a_callback_watches() -> None:
    watching = EarlyStoppingCallback(early_stopping_patience=9, watch_metric="score", greater_is_better=True)
    assert train(watching).best == BestMetric("score", 0.75, 1)


def test_a_result_says_how_far_the_run_came_and_why_it_ended() -> None:
    outcome = train()
    assert (outcome.epochs, outcome.steps, outcome.stop_reason) == (3, 3, "all 3 epochs are done")
    assert outcome.run_dir is None
    assert set(outcome.history) == {"train_loss_epoch", "eval_loss_epoch", "score"}
