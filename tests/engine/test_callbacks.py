"""Callbacks of the core in a run of this door: their effects, their order with hooks, and what is resumed of them."""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.engine.parts import Classifier, Points, make_config
from tests.interrupting import CutError, starts_of
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
from treadle.config import LazyCall
from treadle.engine import DefaultTrainer, EagerTrainer, HookBase, hooks, launch
from treadle.engine.hooks.hook_list import REFUSED
from treadle.errors import CallbackError, ConfigError, NonFiniteError, StopTrainingError, UnknownMetricError
from treadle.tools.report import ReportCallback

EVALUATED = {"enabled": True, "eval_period": 5}


@dataclass
class Ran:
    """What a run left behind."""

    trainer: DefaultTrainer
    callback: Any
    folder: Path
    told: str
    rows: list[dict[str, Any]] = field(default_factory=list)

    def values(self, name: str) -> list[Any]:
        """Return a metric in `metrics.json`, by iteration."""
        return [row[name] for row in self.rows if name in row]


def run(folder: Path, callback: Any, log: Any, kind: Any = DefaultTrainer, **train: Any) -> Ran:
    with log.at_level(logging.INFO, "treadle"):
        trainer = kind(make_config(folder, **{"evaluation": EVALUATED, "log_period": 2, **train}))
        trainer.register_hooks([callback])
        trainer.train()
    rows = [json.loads(line) for line in (folder / "metrics.json").read_text().splitlines()]
    return Ran(trainer, callback, folder, log.text, rows)


class WithLoss(DefaultTrainer):
    """Has a module beside its model, and scores that are as it says."""

    accuracies = (50.0, 60.0, 40.0)

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        self.loss = Moved()
        self.tests = 0

    def build_hooks(self) -> list[HookBase | None]:
        def evaluate() -> dict[str, float]:
            self.tests += 1
            return {"accuracy": self.accuracies[min(self.tests, len(self.accuracies)) - 1]}

        return [hooks.EvalHook(2, evaluate), *super().build_hooks()]


class Nan(WithLoss):
    accuracies = (50.0, float("nan"), 40.0)


class Moved(nn.Module):
    """Takes note of where it is moved."""

    def __init__(self) -> None:
        super().__init__()
        self.moved: list[Any] = []

    def to(self, *place: Any, **more: Any) -> Any:
        self.moved += place
        return self


def moves_modules(make: Callable[..., Ran]) -> None:
    ran = make(callbacks.MoveModulesToDeviceCallback, kind=WithLoss, evaluation={"enabled": False})
    assert ran.trainer.loss.moved == [torch.device("cpu")]


def ends_at_nan(make: Callable[..., Ran]) -> None:
    with pytest.raises(NonFiniteError, match="accuracy is nan after step 4"):
        make(callbacks.TerminateOnNaNCallback(), kind=Nan, evaluation={"enabled": False})


def prints_settings(make: Callable[..., Ran]) -> None:
    told = make(callbacks.PrintProgressCallback()).told
    assert "model   " in told
    assert "left at step 10" in told
    assert "finished after " in told


def shows_how_far_it_is(make: Callable[..., Ran]) -> None:
    seen: list[str] = []

    class Slow(WithLoss):
        def after_step(self) -> None:
            super().after_step()
            torch.randn(300, 300) @ torch.randn(300, 300)

    bar = callbacks.ProgressBarCallback(refresh_every=0.001, line_every=0.001)
    told = make(bar, kind=Slow, evaluation={"enabled": False}, train_iter=300).told
    assert "epoch 1  " in told, seen


def shows_metrics(make: Callable[..., Ran]) -> None:
    assert "accuracy 60" in make(callbacks.LogMetricsCallback(), kind=WithLoss, evaluation={"enabled": False}).told


def stops_early(make: Callable[..., Ran]) -> None:
    stopping = EarlyStoppingCallback(2, 0.0, "accuracy", greater_is_better=True)
    ran = make(stopping, kind=WithLoss, evaluation={"enabled": False}, train_iter=20)
    # 50 after two iterations, 60 after four, then 40 twice.
    assert ran.trainer.iter == 8
    assert "accuracy did not improve by more than 0 in 2 evaluations (best 60, now 40)" in ran.told


def saves_best(make: Callable[..., Ran]) -> None:
    seen: list[Any] = []
    saving = SaveBestModelCallback(watch_metric="accuracy", greater_is_better=True)

    class Keeping(WithLoss):
        def build_hooks(self) -> list[HookBase | None]:
            note = hooks.CallbackHook(after_step=lambda own: seen.append(own.model.head.weight.detach().clone()))
            return [note, *super().build_hooks()]

    ran = make(saving, kind=Keeping, evaluation={"enabled": False})
    assert torch.load(ran.folder / "best_model.pt", weights_only=True)["accuracy"] == 60.0
    assert torch.equal(ran.trainer.model.head.weight, seen[3])


def averages_weights(make: Callable[..., Ran]) -> None:
    weights: list[Any] = []

    class Keeping(DefaultTrainer):
        def before_step(self) -> None:
            super().before_step()
            weights.append(self.model.head.weight.detach().clone())

    ran = make(ModelEmaCallback(decay=0.5), kind=Keeping, train_iter=3)
    average = weights[0]
    for weight in (*weights[1:], ran.trainer.model.head.weight.detach()):
        average = average.lerp(weight, 0.5)
    assert torch.allclose(ran.callback.ema_model.module.head.weight, average)
    saved = torch.load(ran.folder / "ema_model.pt", weights_only=True)["model_state_dict"]
    assert torch.equal(saved["head.weight"], ran.callback.ema_model.module.head.weight)


def limits_batches(make: Callable[..., Ran]) -> None:
    drawn: list[Any] = []

    class Seeing(DefaultTrainer):
        @classmethod
        def get_batch(cls, data: Any, **more: Any) -> Any:
            drawn.append(len(data["labels"]))
            return data

    ran = make(callbacks.LimitBatchesCallback(3), kind=Seeing, evaluation={"enabled": False})
    # Three of the eight batches of an epoch, and then the next epoch.
    assert ran.trainer.core.streams["train"].epoch == 3
    assert ran.trainer.core.streams["train"].drawn == 1


def reports_rates(make: Callable[..., Ran]) -> None:
    ran = make(callbacks.LearningRateMonitor(), scheduler=None)
    assert ran.values("lr") == [0.1] * 5


def reports_norms(make: Callable[..., Ran]) -> None:
    ran = make(GradientNormMonitor())
    norms = ran.values("gradient_norm")
    assert len(norms) >= 5
    assert min(norms) > 0


def times_parts(make: Callable[..., Ran]) -> None:
    ran = make(StepTimer(every=1))
    assert min(ran.values("step_time/forward")) > 0
    assert min(ran.values("step_time/update")) > 0


def measures_pace(make: Callable[..., Ran]) -> None:
    ran = make(ThroughputMonitor())
    assert ran.values("samples_per_second")
    assert ran.values("peak_memory_mib")


def reports_stats(make: Callable[..., Ran]) -> None:
    ran = make(callbacks.RunStatsMonitor())
    assert min(ran.values("samples_per_second")) > 0
    assert min(ran.values("lr")) > 0


def writes_a_trace(make: Callable[..., Ran]) -> None:
    ran = make(callbacks.ProfilerCallback(first_step=3, num_steps=2))
    assert (ran.folder / "profile" / "trace_steps_3_to_4.json").is_file()


def leaves_one_process_alone(make: Callable[..., Ran]) -> None:
    assert make(callbacks.ConvertSyncBatchNormCallback()).trainer.iter == 10


def writes_a_report(make: Callable[..., Ran]) -> None:
    assert "total_loss" in (make(ReportCallback()).folder / "report.html").read_text()


EFFECTS: dict[type, Callable[[Callable[..., Ran]], None]] = {
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
"""What each callback brings about in a run of this door."""


@pytest.mark.parametrize("kind", EFFECTS, ids=lambda kind: kind.__name__)
def test_a_callback_brings_about_what_it_does_elsewhere(
    kind: type, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def make(callback: Any, kind: Any = DefaultTrainer, **train: Any) -> Ran:
        return run(tmp_path / "run", callback, caplog, kind, **train)

    EFFECTS[kind](make)


def test_every_callback_has_an_effect_or_is_refused() -> None:
    there = [getattr(callbacks, name) for name in callbacks.__all__]
    kinds = [one for one in there if isinstance(one, type) and issubclass(one, TrainerCallback)]
    parents = {TrainerCallback, callbacks.WatchesMetric}
    assert {*kinds, ReportCallback} - parents == {*EFFECTS, *REFUSED}


@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.__name__)
def test_a_callback_that_could_do_nothing_is_refused_by_name_with_the_reason(kind: Any) -> None:
    trainer = eager()
    with pytest.raises(ConfigError) as caught:
        trainer.register_hooks([kind.__new__(kind)])
    assert str(caught.value) == f"{kind.__name__} does nothing in a run of treadle.engine: {REFUSED[kind]}"
    assert len(trainer.hook_list) == 0


def eager() -> EagerTrainer:
    torch.manual_seed(0)
    model = Classifier()
    data = torch.utils.data.DataLoader(Points(16), batch_size=4)
    return EagerTrainer(model, data, torch.optim.SGD(model.parameters(), lr=0.1))


class Noting(TrainerCallback):
    """Takes note of the events that hooks have as well."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    def on_training_run_start(self, trainer: Any, **kwargs: Any) -> None:
        self.calls.append("B.before_train")

    def on_update_start(self, trainer: Any, **kwargs: Any) -> None:
        self.calls.append("B.before_step")

    def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
        self.calls.append("B.after_step")

    def on_training_run_end(self, trainer: Any, **kwargs: Any) -> None:
        self.calls.append("B.after_train")

    def close(self) -> None:
        self.calls.append("B.close")


class Duck:
    """A callback by its methods alone."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    def on_update_end(self, trainer: Any) -> None:
        self.calls.append("D.after_step")

    def close(self) -> None:
        self.calls.append("D.close")


def noting(name: str, calls: list[str]) -> HookBase:
    moments = ("before_train", "before_step", "after_step", "after_train")
    functions: Any = {one: lambda trainer, one=one: calls.append(f"{name}.{one}") for one in moments}
    return hooks.CallbackHook(**functions)


ORDER = ["A.before_train", "B.before_train", "C.before_train"]
STEP = ["A.before_step", "B.before_step", "C.before_step", "A.after_step", "B.after_step", "C.after_step"]
END = ["A.after_train", "B.after_train", "C.after_train"]


def test_hooks_and_callbacks_act_in_one_order_and_are_closed_last_first() -> None:
    calls: list[str] = []
    trainer = eager()
    trainer.register_hooks([noting("A", calls), Noting(calls), None, noting("C", calls), Duck(calls)])
    trainer.train(0, 2)
    step = [*STEP, "D.after_step"]
    assert calls == [*ORDER, *step, *step, *END, "D.close", "B.close"]


def test_a_trainer_with_moments_of_its_own_calls_both_by_super() -> None:
    calls: list[str] = []

    class Own(EagerTrainer):
        def before_train(self) -> None:
            calls.append(f"before_train {self.iter}")
            super().before_train()

        def before_step(self) -> None:
            calls.append(f"before_step {self.iter}")
            super().before_step()

        def after_step(self) -> None:
            super().after_step()
            calls.append(f"after_step {self.iter}")

        def after_train(self) -> None:
            super().after_train()
            calls.append(f"after_train {self.iter}")

    made = eager()
    trainer = Own(made.model, made.data_loader, made.optimizer)
    trainer.register_hooks([noting("A", calls), Noting(calls), noting("C", calls)])
    trainer.train(3, 4)
    step = ["before_step 3", *STEP, "after_step 3"]
    assert calls == ["before_train 3", *ORDER, *step, *END, "after_train 4", "B.close"]


def test_a_callback_whose_run_dies_is_told_and_closed() -> None:
    told: list[Any] = []

    class Own(TrainerCallback):
        def on_exception(self, trainer: Any, exception: BaseException, **kwargs: Any) -> None:
            told.append(type(exception))

        def close(self) -> None:
            told.append("closed")

    def die(trainer: Any) -> None:
        raise KeyError("no")

    trainer = eager()
    ended: list[Any] = []
    after = hooks.CallbackHook(after_train=lambda own: ended.append(type(own.failure)))
    trainer.register_hooks([Own, hooks.CallbackHook(after_step=die), after])
    with pytest.raises(KeyError):
        trainer.train(0, 2)
    assert told == [KeyError, "closed"]
    assert ended == [KeyError]


def test_a_trainer_with_an_end_of_its_own_ends_hooks_of_a_run_that_died_by_super() -> None:
    calls: list[str] = []

    class Own(EagerTrainer):
        def after_train(self) -> None:
            calls.append(f"after_train {type(self.failure).__name__}")
            super().after_train()

    def die(trainer: Any) -> None:
        raise KeyError("no")

    made = eager()
    trainer = Own(made.model, made.data_loader, made.optimizer)
    trainer.register_hooks([noting("A", calls), hooks.CallbackHook(after_step=die, after_train=die)])
    with pytest.raises(KeyError) as caught:
        trainer.train(0, 2)
    assert calls == ["A.before_train", "A.before_step", "A.after_step", "after_train KeyError", "A.after_train"]
    assert "raised by CallbackHook.after_train" in "\n".join(caught.value.__notes__)


def test_what_is_registered_while_the_run_is_under_way_acts_from_then_on() -> None:
    calls: list[str] = []

    def register(trainer: Any) -> None:
        if trainer.iter == 1:
            trainer.register_hooks([noting("late", calls), Noting(calls)])

    trainer = eager()
    trainer.register_hooks([hooks.CallbackHook(after_step=register)])
    trainer.train(0, 4)
    step = ["late.before_step", "B.before_step", "late.after_step", "B.after_step"]
    assert calls[-len(step) * 2 - 2 :] == [*step, *step, "B.after_train", "B.close"]


def test_a_run_that_goes_on_in_memory_calls_each_of_them_once() -> None:
    calls: list[str] = []
    trainer = eager()
    trainer.register_hooks([noting("A", calls), Noting(calls)])
    trainer.train(0, 1)
    trainer.train(1, 2)
    step = ["A.before_step", "B.before_step", "A.after_step", "B.after_step"]
    once = ["A.before_train", "B.before_train", *step, "A.after_train", "B.after_train", "B.close"]
    assert calls == once * 2


def test_a_callback_that_fails_at_the_end_ends_the_run_and_hides_no_hook() -> None:
    calls: list[str] = []

    class Failing(TrainerCallback):
        def on_training_run_end(self, trainer: Any, **kwargs: Any) -> None:
            raise KeyError("no end")

    trainer = eager()
    after = hooks.CallbackHook(after_train=lambda own: calls.append(f"after {type(own.failure).__name__}"))
    trainer.register_hooks([noting("A", calls), Failing, after])
    with pytest.raises(KeyError, match="no end"):
        trainer.train(0, 1)
    assert calls[-2:] == ["A.after_train", "after KeyError"]


def test_a_callback_that_wants_to_stop_is_heeded_after_the_step() -> None:
    calls: list[str] = []

    class Stopping(TrainerCallback):
        def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
            raise StopTrainingError("enough")

    trainer = eager()
    trainer.register_hooks([Stopping, noting("A", calls)])
    trainer.train(0, 5)
    assert calls == ["A.before_train", "A.before_step", "A.after_step", "A.after_train"]
    assert trainer.iter == 1


def test_a_log_comes_before_the_writers_write_and_brings_the_loss_by_its_name(tmp_path: Path) -> None:
    seen: list[tuple[int, set[str]]] = []

    class Log(TrainerCallback):
        def on_log(self, trainer: Any, scalars: Any) -> None:
            seen.append((trainer.progress.step, {"train_loss", "total_loss", "time"} & set(scalars)))
            trainer.storage.put_scalar("mine", 1.0)

    trainer = DefaultTrainer(make_config(tmp_path, log_period=4))
    trainer.register_hooks([Log])
    trainer.train()
    assert seen == [(step, {"train_loss", "total_loss", "time"}) for step in (4, 8, 10)]
    lines = [json.loads(line) for line in (tmp_path / "metrics.json").read_text().splitlines()]
    assert [line["iteration"] for line in lines if "mine" in line] == [3, 7, 9]


def test_a_second_callback_of_a_class_is_refused_and_of_hooks_there_may_be_many() -> None:
    trainer = eager()
    trainer.register_hooks([ThroughputMonitor, noting("A", []), noting("B", [])])
    with pytest.raises(CallbackError, match="ThroughputMonitor was given twice"):
        trainer.register_hooks([ThroughputMonitor()])


def test_a_metric_that_no_evaluation_reports_ends_the_run(tmp_path: Path) -> None:
    trainer = DefaultTrainer(make_config(tmp_path, evaluation=EVALUATED))
    trainer.register_hooks([EarlyStoppingCallback(watch_metric="Acc1")])
    with pytest.raises(UnknownMetricError, match=r"EarlyStopping watches 'Acc1', but evaluation reported \['Acc@1'"):
        trainer.train()


def test_a_metric_is_not_watched_where_nothing_evaluates() -> None:
    trainer = eager()
    trainer.register_hooks([EarlyStoppingCallback()])
    with pytest.raises(UnknownMetricError, match="but nothing in this run evaluates the model"):
        trainer.train(0, 2)


def test_a_config_names_callbacks_which_act_before_the_hooks(tmp_path: Path) -> None:
    config = make_config(tmp_path, callbacks=[LazyCall(ModelEmaCallback)(decay=0.5), LazyCall(StepTimer)(every=1)])
    trainer = DefaultTrainer(config)
    names = [type(one).__name__ for one in trainer._hooks]
    assert names[:3] == ["ModelEmaCallback", "StepTimer", "IterationTimer"]
    trainer.train()
    assert (tmp_path / "ema_model.pt").is_file()
    assert "ModelEmaCallback" in (tmp_path / "config.yaml").read_text()


def test_what_a_config_names_and_is_no_callback_is_refused_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train.callbacks.0 builds a Points, which is no callback; give a LazyCall"):
        DefaultTrainer(make_config(tmp_path, callbacks=[LazyCall(Points)()]))


class Cutting(HookBase):
    """Dies after some iteration, and counts those that it sees."""

    def __init__(self, cut: int | None) -> None:
        self.cut, self.made = cut, 0

    def after_step(self) -> None:
        self.made += 1
        if self.trainer.iter + 1 == self.cut:
            raise CutError


@pytest.mark.parametrize("first", [True, False], ids=["before the checkpointer", "after it"])
def test_a_resumed_run_goes_on_with_the_average_and_the_norms(tmp_path: Path, first: bool) -> None:
    def attempt(folder: Path, cut: int | None) -> tuple[DefaultTrainer, Any, int]:
        average, watch = ModelEmaCallback(decay=0.9), Cutting(cut)
        own = [LazyCall(GradientNormMonitor)()] if first else []
        trainer = DefaultTrainer(make_config(folder, resume=True, checkpointer={"period": 3}, callbacks=own))
        trainer.register_hooks([average, *([] if first else [GradientNormMonitor()]), watch])
        trainer.train()
        return trainer, average, watch.made

    whole, expected, _ = attempt(tmp_path / "whole", None)
    with pytest.raises(CutError):
        attempt(tmp_path / "cut", 7)
    resumed, average, made = attempt(tmp_path / "cut", None)
    # The checkpoint of the sixth iteration was taken before the last hook had acted in it.
    assert (resumed.iter, made, starts_of(tmp_path / "cut")) == (10, 5, [0, 6])
    for own, other in zip(average.ema_model.parameters(), expected.ema_model.parameters(), strict=True):
        assert torch.equal(own, other)
    norms = [trainer.storage.series("gradient_norm") for trainer in (resumed, whole)]
    assert (norms[0].steps, norms[0].values) == (norms[1].steps, norms[1].values)


def train_on_two(folder: Path) -> None:
    """Train on two processes, of which the first alone has writers, and note what callbacks found."""
    config = make_config(folder / "run", train_iter=12, log_period=4, evaluation=EVALUATED)
    trainer = DefaultTrainer(config)
    average, watching = ModelEmaCallback(decay=0.5), EarlyStoppingCallback(1, 1000.0, "Acc@1", greater_is_better=True)
    seen: list[tuple[str, int]] = []

    class Log(TrainerCallback):
        def on_log(self, trainer: Any, **kwargs: Any) -> None:
            trainer.processes.barrier()
            seen.append(("log", trainer.progress.step))

        def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
            trainer.processes.barrier()

    trainer.register_hooks([ThroughputMonitor(), GradientNormMonitor(), average, watching, Log()])
    trainer.train()
    (folder / str(trainer.core.processes.rank)).write_text(
        json.dumps({"iter": trainer.iter, "seen": seen, "norm": average.ema_model.module.head.weight.norm().item()})
    )


@pytest.mark.slow
def test_callbacks_act_together_on_two_processes(tmp_path: Path) -> None:
    launch(train_on_two, 2, args=(tmp_path,))
    first, second = (json.loads((tmp_path / rank).read_text()) for rank in "01")
    assert first == second
    # The second evaluation was no better; the processes agree on that after ten iterations.
    assert first["iter"] == 10
    assert first["seen"] == [["log", 4], ["log", 8]]
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.json").read_text().splitlines()]
    assert any("gradient_norm" in row for row in rows)


class ByIteration(DefaultTrainer):
    """Has an evaluation every second iteration, which is best after four."""

    def build_hooks(self) -> list[HookBase | None]:
        def evaluate() -> dict[str, float]:
            return {"accuracy": {2: 50.0, 4: 60.0}.get(self.iter + 1, 40.0)}

        return [hooks.EvalHook(2, evaluate), *super().build_hooks()]


def test_a_resumed_run_goes_on_with_patience_and_the_best(tmp_path: Path) -> None:
    def attempt(cut: int | None) -> tuple[DefaultTrainer, Any]:
        stopping = EarlyStoppingCallback(3, 0.0, "accuracy", greater_is_better=True)
        best = SaveBestModelCallback(watch_metric="accuracy", greater_is_better=True)
        trainer = ByIteration(make_config(tmp_path, resume=True, train_iter=20, checkpointer={"period": 3}))
        trainer.register_hooks([stopping, best, Cutting(cut)])
        trainer.train()
        return trainer, best

    with pytest.raises(CutError):
        attempt(7)
    trainer, best = attempt(None)
    # 40 after six, eight and ten iterations; what was before six is known from the checkpoint.
    assert (trainer.iter, starts_of(tmp_path)) == (10, [0, 6])
    assert best.best_metric == 60.0
    assert torch.load(tmp_path / "best_model.pt", weights_only=True)["accuracy"] == 60.0
