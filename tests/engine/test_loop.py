"""Hooks and the loop: order, failures, stopping, and a second run."""

import contextlib
import gc
import logging
import os
import signal
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.house import calls_of
from tests.engine.parts import Classifier, Points, iterations_of, make_config
from tests.interrupting import starts_of
from treadle.engine import DefaultTrainer, EagerTrainer, HookBase, TrainerBase, hooks
from treadle.errors import ConfigError, StopTrainingError
from treadle.runs.preemption import PreemptedExit

MOMENTS = ("before_train", "before_step", "after_step", "after_train")


class Counting(TrainerBase):
    """Counts its steps, and fails or asks to stop in one of them if told so."""

    def __init__(self, fail_at: int | None = None) -> None:
        super().__init__()
        self.steps: list[int] = []
        self.fail_at = fail_at

    def run_step(self) -> None:
        if self.iter == self.fail_at:
            raise KeyError(f"step {self.iter}")
        self.steps.append(self.iter)


def recorder(name: str, calls: list[str], fail: str = "") -> HookBase:
    """Return a hook that notes each of its moments, and fails in one of them if told so."""

    def note(moment: str) -> Callable[[HookBase], None]:
        def act(self: HookBase) -> None:
            calls.append(f"{name}.{moment}")
            if moment == fail:
                raise ValueError(f"{name} failed in {moment}")

        return act

    hook: HookBase = type(name, (HookBase,), {moment: note(moment) for moment in MOMENTS})()
    return hook


def eager(folder: Path | None = None) -> EagerTrainer:
    torch.manual_seed(0)
    model = Classifier()
    data = [{"inputs": torch.ones(4, 2), "labels": torch.zeros(4, dtype=torch.long)}]
    return EagerTrainer(model, data, torch.optim.SGD(model.parameters(), lr=0.1))


def test_b01_hooks_run_in_the_order_of_registration_at_every_moment() -> None:
    calls: list[str] = []
    trainer = Counting()
    trainer.register_hooks([recorder("A", calls), recorder("B", calls)])
    trainer.train(0, 2)
    step = ["before_step", "after_step"]
    expected = [f"{name}.{moment}" for moment in ["before_train", *step, *step, "after_train"] for name in "AB"]
    assert calls == expected
    assert trainer.steps == [0, 1]


def test_b02_none_among_hooks_is_dropped_and_anything_else_is_a_type_error() -> None:
    trainer = Counting()
    trainer.register_hooks([None, recorder("A", [])])
    assert len(trainer._hooks) == 1
    with pytest.raises(TypeError, match=r"register_hooks got 'print', which is no hook; derive its class from"):
        trainer.register_hooks(["print"])  # type: ignore[list-item]


def test_b03_a_hook_keeps_no_trainer_alive(tmp_path: Path) -> None:
    trainer = Counting()
    hook = recorder("A", [])
    trainer.register_hooks([hook])
    trainer.train(0, 2)
    assert hook.trainer.iter == 2
    gone = weakref.ref(trainer)
    del trainer
    assert gone() is None
    built = DefaultTrainer(make_config(tmp_path, evaluation={"enabled": True}))
    gone_too, kept = weakref.ref(built), list(built._hooks)
    del built
    gc.collect()
    assert gone_too() is None
    assert kept


@pytest.mark.parametrize("fail_at", [0, 2, 4])
def test_b04_a_step_that_fails_ends_every_hook_once_and_its_error_goes_on(fail_at: int) -> None:
    calls: list[str] = []
    trainer = Counting(fail_at)
    trainer.register_hooks([recorder("A", calls), recorder("B", calls)])
    with pytest.raises(KeyError, match=f"step {fail_at}"):
        trainer.train(0, 5)
    assert [call for call in calls if "after_train" in call] == ["A.after_train", "B.after_train"]
    assert isinstance(trainer.failure, KeyError)
    assert trainer.iter == fail_at


def test_b05_failures_at_the_end_hide_neither_each_other_nor_the_error_of_the_training() -> None:
    calls: list[str] = []
    trainer = Counting(fail_at=1)
    failing = [recorder(name, calls, fail="after_train") for name in "AB"]
    trainer.register_hooks([*failing, recorder("C", calls)])
    with pytest.raises(KeyError) as caught:
        trainer.train(0, 5)
    notes = "\n".join(caught.value.__notes__)
    assert notes.index("A failed in after_train") < notes.index("B failed in after_train")
    assert calls[-3:] == ["A.after_train", "B.after_train", "C.after_train"]


def test_b05_without_an_error_of_the_training_the_first_failure_is_raised_with_the_others() -> None:
    trainer = Counting()
    trainer.register_hooks([recorder(name, [], fail="after_train") for name in "AB"])
    with pytest.raises(ValueError, match="A failed in after_train") as caught:
        trainer.train(0, 1)
    assert "B failed in after_train" in "\n".join(caught.value.__notes__)


def test_b06_a_hook_that_fails_to_start_ends_only_those_that_had_started() -> None:
    calls: list[str] = []
    trainer = Counting()
    middle = recorder("B", calls, fail="before_train")
    trainer.register_hooks([recorder("A", calls), middle, recorder("C", calls)])
    with pytest.raises(ValueError, match="B failed in before_train"):
        trainer.train(0, 5)
    assert calls == ["A.before_train", "B.before_train", "A.after_train"]
    assert trainer.steps == []


def evaluations_of(trainer: TrainerBase, iterations: int) -> list[int]:
    found: list[int] = []
    trainer.register_hooks([hooks.EvalHook(0, lambda: found.append(trainer.iter))])
    with contextlib.suppress(KeyError):
        trainer.train(0, iterations)
    return found


def test_b07_after_success_iter_is_max_iter_and_a_failure_in_the_last_step_evaluates_nothing() -> None:
    assert evaluations_of(Counting(), 5) == [5]
    assert evaluations_of(Counting(fail_at=4), 5) == []


def test_b08_with_nothing_left_no_step_runs_and_the_trainer_says_so(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[str] = []
    trainer = Counting()
    trainer.register_hooks([recorder("A", calls)])
    with caplog.at_level(logging.INFO, "treadle"):
        trainer.train(5, 5)
    assert "nothing to do: iteration 5 of 5 is reached" in caplog.text
    assert (trainer.steps, calls) == ([], [])


def test_b09_a_trainer_trains_twice_and_goes_on_in_its_data() -> None:
    batches = [{"inputs": torch.full((4, 2), float(k)), "labels": torch.zeros(4, dtype=torch.long)} for k in range(3)]
    drawn: list[float] = []

    class Seeing(Classifier):
        def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            drawn.append(inputs[0, 0].item())
            return super().forward(inputs, labels)

    model = Seeing()
    trainer = EagerTrainer(model, batches, torch.optim.SGD(model.parameters(), lr=0.1))
    evaluated: list[int] = []
    trainer.register_hooks(
        [hooks.EvalHook(0, lambda: evaluated.append(1)), hooks.CallbackHook(after_step=lambda own: evaluated.append(0))]
    )
    trainer.train(0, 2)
    trainer.train(2, 4)
    assert drawn == [0.0, 1.0, 2.0, 0.0]
    assert evaluated == [0, 0, 1, 0, 0, 1]


def test_b09_a_trainer_from_a_config_goes_on_when_more_is_asked_for(tmp_path: Path) -> None:
    trainer = DefaultTrainer(make_config(tmp_path / "twice", train_iter=4, scheduler=None))
    trainer.train()
    trainer.max_iter = 10
    trainer.train()
    once = DefaultTrainer(make_config(tmp_path / "once", train_iter=10, scheduler=None))
    once.train()
    assert trainer.iter == 10
    for own, other in zip(trainer.model.parameters(), once.model.parameters(), strict=True):
        assert torch.equal(own, other)


def stopping(how: str) -> HookBase:
    def act(trainer: Any) -> None:
        if trainer.iter != 3:
            return
        if how == "request":
            trainer.request_stop("enough")
        elif how == "raise":
            raise StopTrainingError("enough")
        else:
            os.kill(os.getpid(), signal.SIGTERM)

    return hooks.CallbackHook(after_step=act)


@pytest.mark.parametrize("how", ["request", "raise"])
def test_b10_a_stop_ends_the_run_after_the_step_with_checkpoint_evaluation_and_writers(
    tmp_path: Path, how: str
) -> None:
    class Stopping(DefaultTrainer):
        def build_hooks(self) -> list[HookBase | None]:
            return [stopping(how), *super().build_hooks()]

    trainer = Stopping(make_config(tmp_path, log_period=100, evaluation={"enabled": True, "eval_period": 0}))
    results = trainer.train()
    assert trainer.iter == 4
    assert results["Acc@1"] >= 0
    assert trainer.checkpointer.get_checkpoint_file().endswith("step_00000004")
    lines = (tmp_path / "metrics.json").read_text().splitlines()
    assert '"Acc@1"' in lines[-1]
    assert '"iteration": 4' in lines[-1]


def test_b10_patience_is_such_a_stop() -> None:
    trainer = Counting()
    evaluation = hooks.EvalHook(1, lambda: {"accuracy": 0.5})
    trainer.register_hooks([evaluation, hooks.EarlyStop("accuracy", patience=3)])
    trainer.train(0, 100)
    # The first evaluation is the best; three more bring nothing better.
    assert trainer.steps == [0, 1, 2, 3]
    assert trainer.failure is None


@pytest.mark.parametrize(("how", "done"), [("request", 10), ("raise", 4), ("patience", 4)])
def test_a_run_that_was_stopped_for_good_is_over_when_it_is_started_again(tmp_path: Path, how: str, done: int) -> None:
    class Stopping(DefaultTrainer):
        def build_hooks(self) -> list[HookBase | None]:
            evaluation = hooks.EvalHook(1, lambda: {"accuracy": 0.5})
            early = [evaluation, hooks.EarlyStop("accuracy", patience=3)]
            return [*(early if how == "patience" else [stopping(how)]), *super().build_hooks()]

    config = make_config(tmp_path, resume="auto")
    first = Stopping(config)
    first.train()
    assert first.iter == 4
    again = Stopping(config)
    made = iterations_of(again)
    again.train()
    assert (again.iter, made) == (done, list(range(4, done)))
    config.train.train_iter = 12
    longer = DefaultTrainer(config)
    made = iterations_of(longer)
    longer.train()
    assert (longer.iter, made) == (12, list(range(done, 12)))


def test_a_config_that_does_not_resume_is_told_what_to_add(tmp_path: Path) -> None:
    class Stopping(DefaultTrainer):
        def build_hooks(self) -> list[HookBase | None]:
            return [stopping("signal"), *super().build_hooks()]

    with pytest.raises(PreemptedExit, match=r"; to resume, set train.resume=True \(or pass --resume\), and start"):
        Stopping(make_config(tmp_path, log_period=100)).train()


def test_b10_a_signal_saves_flushes_and_leaves_and_the_next_start_goes_on(tmp_path: Path) -> None:
    class Stopping(DefaultTrainer):
        def build_hooks(self) -> list[HookBase | None]:
            return [stopping("signal"), *super().build_hooks()]

    config = make_config(tmp_path, log_period=100, resume="auto")
    with pytest.raises(PreemptedExit, match=r"saved step 4 in .*; start the same command to resume$"):
        Stopping(config).train()
    assert '"total_loss"' in (tmp_path / "metrics.json").read_text()
    resumed = DefaultTrainer(config)
    assert resumed.start_iter == 4
    made = iterations_of(resumed)
    resumed.train()
    assert (resumed.iter, made, starts_of(tmp_path)) == (10, [4, 5, 6, 7, 8, 9], [0, 4])


def test_a_step_that_is_not_defined_says_so() -> None:
    with pytest.raises(NotImplementedError, match="TrainerBase does not say what a step is"):
        TrainerBase().train(0, 1)


def test_a_trainer_that_has_not_begun_has_no_storage() -> None:
    with pytest.raises(ConfigError, match=r"this EagerTrainer has not begun to train; call train\(\) first"):
        eager().storage  # noqa: B018


def test_a_trainer_of_ones_own_saves_what_it_has_like_any_other() -> None:
    class Own(TrainerBase):
        def __init__(self) -> None:
            super().__init__()
            self.model = Classifier()
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
            self.data_loader = torch.utils.data.DataLoader(Points(8), batch_size=4)

        def run_step(self) -> None:
            assert self.model.training
            assert self.core.optimizer is self.optimizer

    trainer = Own()
    trainer.train(0, 2)
    assert trainer.core.model is trainer.model


def test_a_run_whose_optimizer_is_saved_says_of_none_that_it_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The door's own stand-ins, for a `run_step` that shows neither model nor optimizer, are nobody's."""
    caplog.set_level(logging.INFO, logger="treadle")
    DefaultTrainer(make_config(tmp_path / "run")).train()
    assert "is not saved with the run" not in caplog.text
    assert "training from iteration 0 to 10" in caplog.text


def test_an_ordinary_iteration_makes_few_calls(tmp_path: Path) -> None:
    def train(folder: Path) -> None:
        quiet = {"log_period": 1000, "checkpointer": {"period": 1000}}
        evaluated = {"enabled": True, "eval_period": 1000}
        DefaultTrainer(make_config(folder / "run", train_iter=60, evaluation=evaluated, **quiet)).train()

    assert calls_of(train).ordinary <= 140
