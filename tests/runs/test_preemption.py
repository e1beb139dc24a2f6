"""Signals, in this process: a run asked to leave saves itself at the next step, and the trainer stays usable."""

import multiprocessing
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.interrupting import (
    assert_same_bits,
    assert_same_run,
    checkpoint_steps,
    make_trainer,
    metric_lines,
    momentum,
    plain_network,
    samples,
    updates_of,
)
from tests.spoiling import IN_ORDER, spoilt
from treadle import TrainerCallback
from treadle.callbacks import ModelEmaCallback
from treadle.checkpoint import CheckpointStore, Policy, Saver
from treadle.errors import CheckpointError
from treadle.runs.preemption import EXIT_CODE, SIGNALS, PreemptedExit, SignalHandler, leave
from treadle.runs.status import read_status
from treadle.trainer import Trainer


class SignalAt(TrainerCallback):
    """Sends signals to this process in the middle of an update, or at another event."""

    def __init__(self, step: int, *numbers: int, event: str = "on_train_step_start", skip: int = 0) -> None:
        self.step, self.numbers, self.event, self.skip = step, numbers, event, skip

    def _send(self, trainer: Any, event: str) -> None:
        if event == self.event and trainer.progress.step + (event != "on_eval_epoch_start") == self.step:
            self.skip -= 1
            if self.skip >= 0:
                return
            numbers, self.numbers = self.numbers, ()
            for number in numbers:
                os.kill(os.getpid(), number)

    def on_train_step_start(self, trainer: Any, **kwargs: Any) -> None:
        self._send(trainer, "on_train_step_start")

    def on_eval_epoch_start(self, trainer: Any, **kwargs: Any) -> None:
        self._send(trainer, "on_eval_epoch_start")


@pytest.fixture(autouse=True)
def handlers() -> Any:
    """The handlers of the signals before a test, which must be the same after it."""
    # Where the tests run in the background, an interrupt is ignored.
    outside = signal.signal(signal.SIGINT, signal.default_int_handler)
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield before
    assert {number: signal.getsignal(number) for number in SIGNALS} == before
    signal.signal(signal.SIGINT, outside)


def train(run_dir: Path | None, *callbacks: Any, **kwargs: Any) -> Any:
    trainer = make_trainer(run_dir, *callbacks)
    trainer.train(samples(), **{"num_epochs": 4, "log_every": 2, "resume": run_dir and "auto", **kwargs})
    return trainer


def wait_for_writer(run_dir: Path) -> None:
    """Wait for the thread that a run left behind which was interrupted twice; whoever saves there does."""
    Saver(CheckpointStore(run_dir / "checkpoints", Policy()), "attempt", lambda: None)


@pytest.fixture
def whole(tmp_path: Path) -> Any:
    """The same run, never asked to leave."""
    return train(tmp_path / "whole")


# Asked to leave -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
@pytest.mark.parametrize("step", [1, 4, 6, 12])
def test_a_run_asked_to_leave_saves_the_step_under_way_and_goes(
    tmp_path: Path, whole: Any, number: int, step: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(PreemptedExit) as caught:
        train(tmp_path / "run", SignalAt(step, number))
    message = f"saved step {step} in {tmp_path / 'run'}; start the same command to resume"
    assert (caught.value.code, str(caught.value)) == (75, message)
    assert message in capsys.readouterr().out
    assert CheckpointStore(tmp_path / "run" / "checkpoints", Policy()).pointer("last") == step
    resumed = train(tmp_path / "run")
    assert updates_of(resumed) == (step, 12 - step)
    assert_same_run(resumed, whole)
    assert metric_lines(tmp_path / "run") == metric_lines(tmp_path / "whole")


def test_where_the_same_command_would_not_resume_what_to_add_is_said(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt) as left:
        train(tmp_path / "run", SignalAt(4, signal.SIGINT), resume=None)
    said = f"saved step 4 in {tmp_path / 'run'}; to resume, pass resume='auto' and start the same command"
    assert str(left.value) == said
    assert updates_of(train(tmp_path / "run", resume="auto")) == (4, 8)


def test_an_interrupted_run_saves_itself_and_the_same_trainer_goes_on(tmp_path: Path, whole: Any) -> None:
    trainer = make_trainer(tmp_path / "run", SignalAt(4, signal.SIGINT))
    arguments: dict[str, Any] = {"num_epochs": 4, "log_every": 2, "resume": "auto"}
    with pytest.raises(KeyboardInterrupt, match=r"saved step 4 in .*; start the same command to resume"):
        trainer.train(samples(), **arguments)
    assert checkpoint_steps(tmp_path / "run")[-1] == 4
    assert trainer.evaluate(samples(8))["evaluation_loss"] > 0
    result = trainer.train(samples(), **arguments)
    assert (result.steps, result.stop_reason) == (12, "all 4 epochs are done")
    assert updates_of(trainer) == (4, 8)
    assert_same_run(trainer, whole)


def test_after_an_interrupt_the_trainer_may_start_afresh_elsewhere(tmp_path: Path) -> None:
    trainer = make_trainer(None, SignalAt(4, signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        trainer.train(samples(), 4)
    assert trainer.train(samples(), 1).steps == 3


def test_a_second_interrupt_leaves_at_once(tmp_path: Path, whole: Any) -> None:
    with pytest.raises(KeyboardInterrupt) as caught:
        train(tmp_path / "run", SignalAt(5, signal.SIGINT, signal.SIGINT))
    assert str(caught.value) == ""
    wait_for_writer(tmp_path / "run")
    assert max(checkpoint_steps(tmp_path / "run")) == 3
    resumed = train(tmp_path / "run")
    assert updates_of(resumed) == (3, 9)
    assert_same_run(resumed, whole)


@pytest.mark.parametrize("interrupts", [1, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_an_interrupted_run_leaves_no_fetching_worker_behind(tmp_path: Path, interrupts: int, persistent: bool) -> None:
    workers = {"num_workers": 2, "persistent_workers": persistent}
    loaders: dict[str, Any] = {"train_dataloader_kwargs": workers, "eval_dataloader_kwargs": workers}
    trainer = make_trainer(tmp_path, SignalAt(5, *[signal.SIGINT] * interrupts))
    with pytest.raises(KeyboardInterrupt):
        trainer.train(samples(), 4, eval_dataset=samples(8), **loaders)
    assert multiprocessing.active_children() == []
    assert trainer.train(samples(), 4, eval_dataset=samples(8), resume="auto", **loaders).steps == 12
    assert updates_of(trainer) == ((5, 7) if interrupts == 1 else (3, 9))
    assert multiprocessing.active_children() == []


def test_after_a_second_interrupt_the_same_trainer_goes_on(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"num_epochs": 3, "gradient_accumulation_steps": 2, "resume": "auto", "save_every": 1}
    # In the second micro-batch of the third window: half a gradient is there, and stays out of what follows.
    trainer = make_trainer(tmp_path / "run", SignalAt(3, signal.SIGINT, signal.SIGINT, skip=1))
    with pytest.raises(KeyboardInterrupt):
        trainer.train(samples(), **arguments)
    assert trainer.evaluate(samples(8))["evaluation_loss"] > 0
    trainer.train(samples(), **arguments)
    assert updates_of(trainer) == (2, 4)
    whole = make_trainer(tmp_path / "whole")
    whole.train(samples(), **arguments)
    assert_same_run(trainer, whole)


class SlowDisk:
    """Has the checkpoint of one step written only when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
        self.begun, self.may_end, self.ended = threading.Event(), threading.Event(), threading.Event()
        write = CheckpointStore.write

        def slow(store: CheckpointStore, written: int, *arguments: Any) -> None:
            if written == step:
                self.begun.set()
                assert self.may_end.wait(60)
            write(store, written, *arguments)
            if written == step:
                self.ended.set()

        monkeypatch.setattr(CheckpointStore, "write", slow)


def test_a_second_interrupt_does_not_wait_for_a_checkpoint_but_the_next_start_does(
    tmp_path: Path, whole: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk(monkeypatch, 3)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", SignalAt(4, signal.SIGINT, signal.SIGINT))
    assert disk.begun.is_set()
    assert not disk.ended.is_set()
    threading.Timer(0.1, disk.may_end.set).start()
    again = train(tmp_path / "run")
    assert disk.ended.is_set()
    assert updates_of(again) == (3, 9)
    assert_same_run(again, whole)


def test_a_run_asked_to_leave_while_a_checkpoint_is_written_completes_it_and_saves_itself(
    tmp_path: Path, whole: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk(monkeypatch, 3)

    class LetsItEnd(TrainerCallback):
        def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
            if trainer.progress.step == 4:
                assert disk.begun.wait(60)
                threading.Timer(0.1, disk.may_end.set).start()

    with pytest.raises(PreemptedExit, match="saved step 4"):
        train(tmp_path / "run", LetsItEnd, SignalAt(4, signal.SIGTERM))
    assert {3, 4} <= set(checkpoint_steps(tmp_path / "run"))
    resumed = train(tmp_path / "run")
    assert updates_of(resumed) == (4, 8)
    assert_same_run(resumed, whole)


def test_a_run_asked_to_leave_whose_last_checkpoint_failed_saves_itself_when_the_disk_is_well(
    tmp_path: Path, whole: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = CheckpointStore._write_part

    def fail_at_three(store: CheckpointStore, part: Path, *arguments: Any) -> Any:
        if part.name.endswith("_00000003"):
            raise OSError(28, "No space left on device")
        return write(store, part, *arguments)

    monkeypatch.setattr(CheckpointStore, "_write_part", fail_at_three)
    trainer = make_trainer(tmp_path / "run", SignalAt(4, signal.SIGTERM), checkpoints=Policy(on_error="warn"))
    with pytest.raises(PreemptedExit, match="saved step 4"):
        trainer.train(samples(), 4, log_every=2)
    assert checkpoint_steps(tmp_path / "run")[-1] == 4
    resumed = train(tmp_path / "run")
    assert updates_of(resumed) == (4, 8)
    assert_same_run(resumed, whole)


def test_an_interrupt_after_another_signal_is_the_first_one(tmp_path: Path) -> None:
    with pytest.raises((KeyboardInterrupt, PreemptedExit), match="saved step 5"):
        train(tmp_path / "run", SignalAt(5, signal.SIGTERM, signal.SIGINT))


def test_a_signal_in_an_evaluation_is_met_after_it(tmp_path: Path, whole: Any) -> None:
    with pytest.raises(PreemptedExit, match="saved step 6"):
        train(tmp_path / "run", SignalAt(6, signal.SIGTERM, event="on_eval_epoch_start"), eval_dataset=samples(8))
    resumed = train(tmp_path / "run", eval_dataset=samples(8))
    assert len(resumed.run_history.get_metric_values("eval_loss_epoch")) == 4
    assert updates_of(resumed) == (6, 6)


def test_a_loop_of_the_users_own_leaves_at_the_end_of_its_epoch(tmp_path: Path) -> None:
    class Own(Trainer):
        def _run_train_epoch(self, train_dl: Any) -> None:
            self.train_epoch_start()
            for batch in train_dl:
                self.fire("on_train_step_start", batch=batch)
                self.calculate_train_batch_loss(batch)["loss"].backward()
                self.optimizer.step()
                self.optimizer.zero_grad()

    trainer = make_trainer(tmp_path, SignalAt(4, signal.SIGTERM), kind=Own)
    with pytest.raises(PreemptedExit, match="saved step 6"):
        trainer.train(samples(), 4)


def test_callbacks_are_closed_and_told_when_a_run_leaves(tmp_path: Path) -> None:
    seen: list[str] = []

    class Watches(TrainerCallback):
        def on_exception(self, trainer: Any, exception: BaseException, **kwargs: Any) -> None:
            seen.append(type(exception).__name__)

        def close(self) -> None:
            seen.append("closed")

    with pytest.raises(PreemptedExit):
        train(tmp_path, SignalAt(4, signal.SIGTERM), Watches)
    assert seen == ["PreemptedExit", "closed"]


def test_a_run_that_could_not_save_itself_does_not_say_it_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class FullDisk(TrainerCallback):
        def on_train_step_start(self, trainer: Any, **kwargs: Any) -> None:
            if trainer.progress.step == 3:
                trainer.this_run.checkpointer.wait()
                monkeypatch.setattr(CheckpointStore, "_write_part", self._fail)

        def _fail(self, *arguments: Any) -> None:
            raise OSError(28, "No space left on device")

    with pytest.raises(CheckpointError, match="cannot write the checkpoint of step 4"):
        train(tmp_path, FullDisk, SignalAt(4, signal.SIGTERM))
    assert "saved step" not in capsys.readouterr().out


@pytest.mark.parametrize("save_every", [2, 3])
def test_a_run_that_has_to_go_back_first_leaves_all_the_same(tmp_path: Path, save_every: int) -> None:
    trainer = make_trainer(tmp_path, SignalAt(4, signal.SIGTERM), on_nonfinite="rollback")
    with pytest.raises(PreemptedExit) as caught:
        trainer.train(spoilt(4), 1, save_every=save_every, log_every=50, **IN_ORDER)
    assert caught.value.code == EXIT_CODE
    newest = CheckpointStore(tmp_path / "checkpoints", Policy()).steps()[-1]
    weights = CheckpointStore(tmp_path / "checkpoints", Policy()).read(newest)["tracked"]["model"]
    assert all(tensor.isfinite().all() for tensor in weights.values())


# Handlers -------------------------------------------------------------------------------------------------


def test_without_a_folder_signals_are_none_of_our_business(handlers: Any) -> None:
    seen: list[Any] = []

    class Looks(TrainerCallback):
        def on_train_epoch_start(self, trainer: Any, **kwargs: Any) -> None:
            seen.append({number: signal.getsignal(number) for number in SIGNALS})

    train(None, Looks, num_epochs=1)
    assert seen == [handlers]


@pytest.mark.parametrize("failing", [True, False])
def test_handlers_are_set_for_the_run_only(tmp_path: Path, handlers: Any, failing: bool) -> None:
    def own(number: int, frame: Any) -> None:
        raise AssertionError("a handler of the user's was called during a run")

    class Fails(TrainerCallback):
        def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
            assert signal.getsignal(signal.SIGUSR1) is not own
            if failing:
                raise ZeroDivisionError

    signal.signal(signal.SIGUSR1, own)
    try:
        if failing:
            with pytest.raises(ZeroDivisionError):
                train(tmp_path, Fails)
        else:
            train(tmp_path, Fails)
        assert signal.getsignal(signal.SIGUSR1) is own
    finally:
        signal.signal(signal.SIGUSR1, handlers[signal.SIGUSR1])


def test_a_run_in_another_thread_trains_and_leaves_the_handlers_alone(tmp_path: Path, handlers: Any) -> None:
    seen: list[Any] = []

    class Looks(TrainerCallback):
        def on_train_epoch_start(self, trainer: Any, **kwargs: Any) -> None:
            seen.append({number: signal.getsignal(number) for number in SIGNALS})

    results: list[Any] = []
    trainer = make_trainer(tmp_path, Looks, build=plain_network, optimizer=momentum)
    thread = threading.Thread(target=lambda: results.append(trainer.train(samples(), 1)))
    thread.start()
    thread.join()
    assert results[0].steps == 3
    assert seen == [handlers]
    assert max(checkpoint_steps(tmp_path)) == 3


def test_requests_are_handed_on_with_their_number_and_a_second_interrupt_is_raised(handlers: Any) -> None:
    asked: list[int] = []
    with SignalHandler(asked.append):
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
            os.kill(os.getpid(), number)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert asked == [signal.SIGTERM, signal.SIGUSR1, signal.SIGTERM, signal.SIGINT]
    assert {number: signal.getsignal(number) for number in SIGNALS} == handlers


def test_a_handler_that_was_not_set_in_python_is_replaced_by_the_default_one(
    monkeypatch: pytest.MonkeyPatch, handlers: Any
) -> None:
    set_handlers: list[Any] = []

    def set_handler(number: int, handler: Any) -> None:
        set_handlers.append(handler)

    monkeypatch.setattr(signal, "signal", set_handler)
    with SignalHandler(lambda number: None):
        set_handlers.clear()
    assert set_handlers == [signal.SIG_DFL] * len(SIGNALS)


def test_leaving_is_an_interrupt_or_an_exit() -> None:
    with pytest.raises(KeyboardInterrupt, match="saved"):
        leave(signal.SIGINT, "saved")
    for number in (signal.SIGTERM, signal.SIGUSR1):
        with pytest.raises(SystemExit, match="saved") as caught:
            leave(number, "saved")
        assert caught.value.code == 75


# In an evaluation, and at the end -------------------------------------------------------------------------


class Evaluated(TrainerCallback):
    """Counts the batches that were evaluated, and sends a signal at one of them."""

    def __init__(self, at: int = 0) -> None:
        self.at, self.batches, self.updates = at, 0, 0

    def on_eval_step_start(self, trainer: Any, **kwargs: Any) -> None:
        self.batches += 1
        if self.batches == self.at:
            os.kill(os.getpid(), signal.SIGTERM)

    def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
        self.updates += 1


@pytest.mark.parametrize("every", ["1 epoch", "2 steps"])
@pytest.mark.parametrize("limit", [{}, {"max_steps": 10}])
def test_a_run_asked_to_leave_in_an_evaluation_breaks_it_off_and_makes_it_when_it_goes_on(
    tmp_path: Path, every: str, limit: dict[str, int]
) -> None:
    options = {"eval_dataset": samples(40), "eval_every": every, **limit}
    whole = train(tmp_path / "whole", **options)
    cut, rest = Evaluated(at=7), Evaluated()
    with pytest.raises(PreemptedExit, match=r"saved step (6|4)"):
        train(tmp_path / "run", cut, **options)
    assert cut.batches == 7  # of the second evaluation, which has five batches, two
    resumed = train(tmp_path / "run", rest, **options)
    assert cut.updates + rest.updates == whole.progress.step  # none was made twice
    assert updates_of(resumed) == (cut.updates, rest.updates)
    assert_same_run(resumed, whole)
    assert metric_lines(tmp_path / "run") == metric_lines(tmp_path / "whole")
    history = whole.run_history.get_metric_values("eval_loss_epoch")
    assert resumed.run_history.get_metric_values("eval_loss_epoch") == history


def test_a_run_asked_to_leave_in_its_last_evaluation_which_its_limit_cut_goes_on_in_the_epoch_later(
    tmp_path: Path,
) -> None:
    options = {"eval_dataset": samples(40), "max_steps": 5}
    whole = train(tmp_path / "whole", **{**options, "max_steps": 9})
    with pytest.raises(PreemptedExit, match="saved step 5"):
        train(tmp_path / "run", Evaluated(at=7), **options)
    again = train(tmp_path / "run", **options)
    assert again.progress.mid_epoch
    assert updates_of(again) == (5, 0)
    longer = train(tmp_path / "run", **{**options, "max_steps": 9})
    assert updates_of(longer) == (5, 4)
    assert_same_bits(longer.model.state_dict(), whole.model.state_dict())


def test_an_evaluation_of_averaged_weights_is_not_broken_off_after_the_other_was_recorded(tmp_path: Path) -> None:
    options: dict[str, Any] = {"eval_dataset": samples(40), "num_epochs": 2}
    whole = train(tmp_path / "whole", ModelEmaCallback(evaluate_during_training=True), **options)
    with pytest.raises(PreemptedExit):
        train(tmp_path / "run", ModelEmaCallback(evaluate_during_training=True), Evaluated(at=7), **options)
    resumed = train(tmp_path / "run", ModelEmaCallback(evaluate_during_training=True), **options)
    assert updates_of(resumed) == (6, 0)
    for name in whole.run_history.get_metric_names():
        assert resumed.run_history.get_metric_values(name) == whole.run_history.get_metric_values(name)


class OwnEvaluation(Trainer):
    """Evaluates by a loop of its own, over the data once or twice."""

    passes, at, batches = 1, 0, 0

    def _run_eval_epoch(self, valid_dl: Any, is_intermediate: bool = False) -> None:
        self.model.eval()
        for number in range(self.passes):
            total = 0.0
            for batch in valid_dl:
                self.batches += 1
                if self.batches == self.at:
                    os.kill(os.getpid(), signal.SIGTERM)
                total += float(self.calculate_eval_batch_loss(batch)["loss"].detach())
            self.run_history.update_metric(f"own_{number}", total)


@pytest.mark.parametrize(("passes", "at", "seen"), [(1, 7, 7), (2, 12, 12), (2, 17, 20)])
def test_an_evaluation_of_ones_own_is_broken_off_until_it_has_recorded_something(
    tmp_path: Path, passes: int, at: int, seen: int
) -> None:
    def run(name: str, at: int = 0) -> OwnEvaluation:
        trainer = make_trainer(tmp_path / name, kind=OwnEvaluation)
        trainer.passes, trainer.at = passes, at
        trainers.append(trainer)
        trainer.train(samples(), num_epochs=3, per_device_batch_size=8, eval_dataset=samples(40), resume="auto")
        return trainer

    trainers: list[OwnEvaluation] = []
    whole = run("whole")
    with pytest.raises(PreemptedExit, match="saved step"):
        run("run", at)
    assert trainers[-1].batches == seen  # each pass has five batches
    assert_same_run(run("run"), whole)
    assert metric_lines(tmp_path / "run") == metric_lines(tmp_path / "whole")
    for number in range(passes):
        values = whole.run_history.get_metric_values(f"own_{number}")
        assert trainers[-1].run_history.get_metric_values(f"own_{number}") == values


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGTERM, PreemptedExit), (signal.SIGINT, KeyboardInterrupt)])
def test_a_signal_at_the_end_of_a_run_is_not_swallowed(
    tmp_path: Path, number: int, expected: type[BaseException]
) -> None:
    class AtEnd(TrainerCallback):
        def on_training_run_end(self, trainer: Any, **kwargs: Any) -> None:
            os.kill(os.getpid(), number)

    with pytest.raises(expected, match="had come to its end, at step 12"):
        train(tmp_path, AtEnd)
    status = read_status(tmp_path)
    assert status is not None
    assert status.state == "finished"


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_that_was_ignored_stays_so(tmp_path: Path, number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_IGN)
    try:
        assert train(tmp_path, SignalAt(4, number)).progress.step == 12
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)


def test_a_run_whose_end_could_not_be_saved_is_not_called_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    class FullDisk(TrainerCallback):
        def on_train_step_start(self, trainer: Any, **kwargs: Any) -> None:
            if trainer.progress.step == 7:
                trainer.this_run.checkpointer.wait()
                monkeypatch.setattr(CheckpointStore, "_write_part", fail)

    trainer = make_trainer(tmp_path, FullDisk, checkpoints=Policy(on_error="warn"))
    result = trainer.train(samples(), 4)
    said = "the run came to its end, step 12, which is not saved: cannot write the checkpoint of step 12"
    assert result.unsaved.startswith(said)
    assert said in capsys.readouterr().out
    status = read_status(tmp_path)
    assert status is not None
    assert status.state == "failed"
    assert status.message == result.unsaved
    monkeypatch.undo()
    resumed = make_trainer(tmp_path)
    assert resumed.train(samples(), 4, resume="auto").unsaved == ""
    assert updates_of(resumed) == (6, 6)
    again = read_status(tmp_path)
    assert again is not None
    assert again.state == "finished"
