"""Callbacks of the core in a training of recommenders: their effects, how settings name them, what is resumed."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.interrupting import CutAt, CutError, starts_of
from tests.recsys.trainer.runs import Run, make
from treadle import callbacks
from treadle.callback import TrainerCallback
from treadle.callbacks import (
    EarlyStoppingCallback,
    GradientNormMonitor,
    ModelEmaCallback,
    SaveBestModelCallback,
    StepTimer,
    ThroughputMonitor,
)
from treadle.errors import CallbackError, ConfigError, NonFiniteError, UnknownMetricError
from treadle.recsys import Trainer
from treadle.recsys.trainers.loop.callbacks import REFUSED
from treadle.tools.report import ReportCallback

SCORES = (0.5, 0.6, 0.4, 0.4, 0.4)


class Scored(Trainer):
    """Has a module beside its model, and evaluations that score as it says."""

    scores: tuple[float, ...] = SCORES

    def __init__(self, config: Any, model: Any) -> None:
        super().__init__(config, model)
        self.loss = Moved()
        self.tests = 0
        self.weights: list[Any] = []

    def _valid_epoch(self, valid_data: Any, show_progress: bool = False) -> tuple[float, Any]:
        self.tests += 1
        self.weights.append(self.model.user_embedding.weight.detach().clone())
        score = self.scores[self.tests - 1]
        return score, {"ndcg@5": score}


class Nan(Scored):
    scores = (0.5, math.nan, 0.5)


class Moved(nn.Module):
    """Takes note of where it is moved."""

    def __init__(self) -> None:
        super().__init__()
        self.moved: list[Any] = []

    def to(self, *place: Any, **more: Any) -> Any:
        self.moved += place
        return self


Make = Callable[..., Run]


def moves_modules(fit: Make) -> None:
    assert fit(callbacks.MoveModulesToDeviceCallback(), kind=Scored).trainer.loss.moved == [torch.device("cpu")]


def ends_at_nan(fit: Make) -> None:
    with pytest.raises(NonFiniteError, match=r"valid_ndcg@5 is nan after step 8"):
        fit(callbacks.TerminateOnNaNCallback(), kind=Nan)


def prints_settings(fit: Make) -> None:
    told = fit(callbacks.PrintProgressCallback()).told
    assert "model   BPR, " in told
    # The line of an epoch is printed once, by whoever tells of the run.
    assert told.count("epoch 3/3  ") == 1


def shows_how_far_it_is(fit: Make) -> None:
    assert "epoch  1/20  " in fit(callbacks.ProgressBarCallback(0.001, 0.001), epochs=20).told


def shows_metrics(fit: Make) -> None:
    assert "valid_score" in fit(callbacks.LogMetricsCallback()).told


def stops_early(fit: Make) -> None:
    stopping = EarlyStoppingCallback(2, 0.0, "valid_score", greater_is_better=True)
    ran = fit(stopping, kind=Scored, epochs=5)
    assert ran.trainer.tests == 4
    assert "valid_score did not improve by more than 0 in 2 evaluations (best 0.6, now 0.4)" in ran.told


def saves_best(fit: Make) -> None:
    ran = fit(SaveBestModelCallback(watch_metric="valid_score", greater_is_better=True), kind=Scored)
    saved = torch.load(ran.folder / "run" / "best_model.pt", weights_only=True)
    assert saved["valid_score"] == 0.6
    assert torch.equal(ran.trainer.model.user_embedding.weight, ran.trainer.weights[1])


def averages_weights(fit: Make) -> None:
    weights: list[Any] = []

    class Noting(TrainerCallback):
        def on_update_start(self, trainer: Any, **kwargs: Any) -> None:
            weights.append(trainer.model.user_embedding.weight.detach().clone())

    average = ModelEmaCallback(decay=0.5)
    ran = fit(average, Noting(), epochs=1)
    expected = weights[0]
    for weight in (*weights[1:], ran.trainer.model.user_embedding.weight.detach()):
        expected = expected.lerp(weight, 0.5)
    assert torch.allclose(average.ema_model.module.user_embedding.weight, expected)
    assert (ran.folder / "run" / "ema_model.pt").is_file()


def limits_batches(fit: Make) -> None:
    ran = fit(callbacks.LimitBatchesCallback(2))
    assert ran.core.progress.step == 6


def reports_rates(fit: Make) -> None:
    assert fit(callbacks.LearningRateMonitor()).core.storage.series("lr").values == [0.01] * 3


def reports_norms(fit: Make) -> None:
    assert min(fit(GradientNormMonitor()).core.storage.series("gradient_norm").values) > 0


def times_parts(fit: Make) -> None:
    assert min(fit(StepTimer(every=1)).core.storage.series("step_time/forward").values) > 0


def measures_pace(fit: Make) -> None:
    assert min(fit(ThroughputMonitor()).core.storage.series("samples_per_second").values) > 0


def reports_stats(fit: Make) -> None:
    storage = fit(callbacks.RunStatsMonitor()).core.storage
    assert min(storage.series("samples_per_second").values) > 0
    assert min(storage.series("lr").values) > 0


def writes_a_trace(fit: Make) -> None:
    ran = fit(callbacks.ProfilerCallback(first_step=3, num_steps=2))
    assert (ran.folder / "run" / "profile" / "trace_steps_3_to_4.json").is_file()


def leaves_one_process_alone(fit: Make) -> None:
    assert fit(callbacks.ConvertSyncBatchNormCallback()).core.progress.epoch == 3


def writes_a_report(fit: Make) -> None:
    assert "valid_score" in (fit(ReportCallback()).folder / "run" / "report.html").read_text()


EFFECTS: dict[type, Callable[[Make], None]] = {
    callbacks.MoveModulesToDeviceCallback: moves_modules,
    callbacks.TerminateOnNaNCallback: ends_at_nan,
    callbacks.PrintProgressCallback: prints_settings,
    callbacks.ProgressBarCallback: shows_how_far_it_is,
    callbacks.LogMetricsCallback: shows_metrics,
    EarlyStoppingCallback: stops_early,
    SaveBestModelCallback: saves_best,
    ModelEmaCallback: averages_weights,
    callbacks.LimitBatchesCallback: limits_batches,
    callbacks.LearningRateMonitor: reports_rates,
    GradientNormMonitor: reports_norms,
    StepTimer: times_parts,
    ThroughputMonitor: measures_pace,
    callbacks.RunStatsMonitor: reports_stats,
    callbacks.ProfilerCallback: writes_a_trace,
    callbacks.ConvertSyncBatchNormCallback: leaves_one_process_alone,
    ReportCallback: writes_a_report,
}
"""What each callback brings about in a training of recommenders."""


@pytest.mark.parametrize("kind", EFFECTS, ids=lambda kind: kind.__name__)
def test_a_callback_brings_about_what_it_does_elsewhere(
    kind: type, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fit(*given: Any, kind: Any = None, **settings: Any) -> Any:
        made: Any = make(tmp_path, "BPR", *given, kind=kind, **train_settings(tmp_path, **settings))
        made.trainer.fit(made.train, made.valid)
        made.folder, made.told = tmp_path, capsys.readouterr().out
        made.core = made.trainer._core
        return made

    EFFECTS[kind](fit)


def train_settings(folder: Path, **settings: Any) -> dict[str, Any]:
    return {
        "run_dir": str(folder / "run"),
        "embedding_size": 8,
        "execution": "eager",
        "learning_rate": 0.01,
        **settings,
    }


def test_every_callback_has_an_effect_or_is_refused() -> None:
    there = [getattr(callbacks, name) for name in callbacks.__all__]
    kinds = [one for one in there if isinstance(one, type) and issubclass(one, TrainerCallback)]
    assert {*kinds, ReportCallback} - {TrainerCallback, callbacks.WatchesMetric} == {*EFFECTS, *REFUSED}


@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.__name__)
def test_a_callback_that_could_do_nothing_is_refused_by_name_with_the_reason(kind: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        make(tmp_path, "BPR", kind.__new__(kind), embedding_size=8).fit()
    assert str(caught.value) == f"{kind.__name__} does nothing in a training of recommenders: {REFUSED[kind]}"


def test_settings_name_callbacks_with_their_arguments(tmp_path: Path) -> None:
    named = ["ThroughputMonitor", {"StepTimer": {"every": 1}}, {"treadle.callbacks.ModelEmaCallback": {"decay": 0.5}}]
    made = make(tmp_path, "BPR", callbacks=named, **train_settings(tmp_path))
    assert [type(one).__name__ for one in made.trainer.callbacks] == [
        "ThroughputMonitor",
        "StepTimer",
        "ModelEmaCallback",
    ]
    made.fit()
    names = made.trainer._core.storage.names()
    assert {"samples_per_second", "step_time/forward"} <= names
    assert made.trainer.callbacks[2].decay == 0.5
    assert "StepTimer" in (tmp_path / "run" / "config.yaml").read_text()


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("StepTimer", "callbacks='StepTimer' must be a list: of names, or of mappings"),
        (["StepTimr"], r"callbacks\[0\]: there is no callback 'StepTimr'; did you mean 'StepTimer'\?"),
        (["Nothing"], r"callbacks\[0\]: there is no callback 'Nothing'; give the name of one of treadle.callbacks"),
        ([{"StepTimer": {"evry": 1}}], r"callbacks\[0\]: StepTimer\(\) takes no 'evry'; did you mean 'every'\?"),
        ([3], r"callbacks\[0\]=3 must be a name, or a mapping of one name to its arguments; those that are built"),
        (["ModelEma"], r"callbacks\[0\]: ModelEma is no class of callbacks; derive it from TrainerCallback"),
    ],
)
def test_settings_that_name_no_callback_are_refused(named: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        make(tmp_path, "BPR", callbacks=named, embedding_size=8)


def test_a_metric_that_no_evaluation_reports_ends_the_training_after_the_first(tmp_path: Path) -> None:
    watching = EarlyStoppingCallback(watch_metric="valid_scor")
    with pytest.raises(UnknownMetricError, match="EarlyStopping watches 'valid_scor', but evaluation reported"):
        make(tmp_path, "BPR", watching, **train_settings(tmp_path)).fit()


def test_a_metric_is_watched_from_the_first_evaluation_on(tmp_path: Path) -> None:
    watching = EarlyStoppingCallback(5, watch_metric="valid_score", greater_is_better=True)
    made = make(tmp_path, "BPR", watching, eval_step=2, epochs=4, **train_settings(tmp_path))
    made.fit()
    assert made.trainer._core.progress.epoch == 4


def test_a_metric_is_not_watched_where_nothing_evaluates(tmp_path: Path) -> None:
    made = make(tmp_path, "BPR", EarlyStoppingCallback(watch_metric="valid_score"), **train_settings(tmp_path))
    with pytest.raises(UnknownMetricError, match="nothing in this run evaluates the model; give fit its valid_data"):
        made.trainer.fit(made.train, verbose=False)


def test_a_bar_that_was_asked_for_twice_is_shown_once(tmp_path: Path) -> None:
    made = make(tmp_path, "BPR", callbacks.ProgressBarCallback(), **train_settings(tmp_path))
    made.trainer.fit(made.train, made.valid, verbose=False, show_progress=True)
    made = make(tmp_path, "BPR", StepTimer(), StepTimer(), embedding_size=8)
    with pytest.raises(CallbackError, match="StepTimer was given twice"):
        made.fit()


def test_a_resumed_training_goes_on_with_the_average(tmp_path: Path) -> None:
    def attempt(folder: Path, *more: Any) -> Any:
        average = ModelEmaCallback(decay=0.9)
        made = make(folder, "BPR", average, *more, save_every=1, **train_settings(folder))
        made.fit()
        return average, made

    expected, _ = attempt(tmp_path / "whole")
    with pytest.raises(CutError):
        attempt(tmp_path / "cut", CutAt(7))
    average, made = attempt(tmp_path / "cut")
    assert starts_of(tmp_path / "cut" / "run") == [0, 6]
    assert made.trainer._core.progress.epoch == 3
    for own, other in zip(average.ema_model.parameters(), expected.ema_model.parameters(), strict=True):
        assert torch.equal(own, other)
