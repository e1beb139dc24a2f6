import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import TensorDataset

from tests.interrupting import CutError, Updates, metric_lines
from treadle import Trainer
from treadle.callback import TrainerCallback
from treadle.callbacks import GradientNormMonitor, LearningRateMonitor, RunStatsMonitor, ThroughputMonitor

STATS = {"lr", "samples_per_second", "steps_per_second", "gradient_norm"}


class Clock(TrainerCallback):
    """A clock that an update moves by two seconds, and an evaluation by a hundred a batch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
        self.now += 2.0

    def on_eval_step_end(self, trainer: Any, **kwargs: Any) -> None:
        self.now += 100.0


def test_every_log_has_the_rate_and_the_speed_without_the_time_of_evaluations(
    make_trainer: Any, data: TensorDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(RunStatsMonitor, Clock(monkeypatch), lr=1.0)
    halving = partial(LambdaLR, lr_lambda=lambda update: 1 / (update + 1))
    trainer.train(data, num_epochs=2, eval_dataset=data, eval_every=3, log_every=2, create_scheduler_fn=halving)
    series = {name: trainer.storage.series(name) for name in STATS - {"gradient_norm"}}
    assert series["lr"].steps == [2, 4, 6, 8]
    # As they stand at the log: moved on for the next update.
    assert series["lr"].values == [1 / 3, 1 / 5, 1 / 7, 1 / 9]
    assert series["steps_per_second"].values == [0.5] * 4
    assert series["samples_per_second"].values == [4.0] * 4
    assert "gradient_norm" not in trainer.storage.names()


def test_the_norm_is_reported_where_clipping_computes_it(make_trainer: Any, data: TensorDataset) -> None:
    norms = []

    class Norms(TrainerCallback):
        def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
            norms.append(float(trainer.gradient_norm))

    trainer = make_trainer(RunStatsMonitor, Norms())
    trainer.train(data, num_epochs=1, log_every=2, clip_norm=0.5)
    assert trainer.storage.series("gradient_norm").values == pytest.approx(norms[1::2])


@pytest.mark.parametrize("other", [LearningRateMonitor, ThroughputMonitor, GradientNormMonitor])
def test_what_another_monitor_reports_is_reported_once(
    make_trainer: Any, data: TensorDataset, other: type[TrainerCallback]
) -> None:
    trainer = make_trainer(RunStatsMonitor, other)
    trainer.train(data, num_epochs=1, log_every=2, clip_norm=0.5)
    for name in STATS:
        steps = trainer.storage.series(name).steps
        assert len(steps) == len(set(steps)), name


class Dying(Trainer):
    """Dies between the last step of the first epoch, which is saved, and the log at its end."""

    dies = False

    def train_epoch_end(self) -> None:
        if self.dies:
            raise CutError


def test_the_row_of_an_epoch_that_ends_where_a_run_resumes_has_the_rate(data: TensorDataset, tmp_path: Path) -> None:
    def train(folder: Path, *, dies: bool = False) -> tuple[int, list[dict[str, Any]]]:
        torch.manual_seed(0)
        model, updates = nn.Linear(2, 1), Updates()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        trainer = Dying(model, nn.MSELoss(), optimizer, (RunStatsMonitor, updates), seed=1, run_dir=folder)
        trainer.dies = dies
        trainer.train(data, 2, log_every="1 epoch", save_every="1 step", resume="auto")
        return updates.began, metric_lines(folder)

    with pytest.raises(CutError):
        train(tmp_path / "cut", dies=True)
    _, whole = train(tmp_path / "whole")
    began, rows = train(tmp_path / "cut")
    assert began == whole[0]["step"]
    assert [(row["step"], row["lr"]) for row in rows] == [(row["step"], 0.5) for row in whole]
