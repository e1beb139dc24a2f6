"""Runs that a callback stopped stay stopped when they are started again, and go on when they are to be longer."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch.optim.lr_scheduler import OneCycleLR

from tests.interrupting import CutError, assert_same_run, checkpoint_steps, contents, make_trainer, samples, updates_of
from treadle import StopTrainingError, TrainerCallback
from treadle import TrainerPlaceholderValues as Placeholder
from treadle.callbacks import EarlyStoppingCallback
from treadle.checkpoint import CheckpointStore, Policy
from treadle.checkpoint.checkpointer import is_longer
from treadle.errors import CheckpointError


class StopAt(TrainerCallback):
    """Stops the run after some updates: in the middle of an epoch of three, or at its end."""

    def __init__(self, step: int, event: str = "on_update_end") -> None:
        self._step, self._event = step, event

    def _stop(self, trainer: Any, event: str) -> None:
        if event == self._event and trainer.progress.step == self._step:
            raise StopTrainingError(f"{self._step} are enough")

    def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
        self._stop(trainer, "on_update_end")

    def on_training_run_epoch_end(self, trainer: Any, **kwargs: Any) -> None:
        self._stop(trainer, "on_training_run_epoch_end")


class Counts(TrainerCallback):
    """Counts the updates and the ends of runs that it sees."""

    def __init__(self) -> None:
        self.updates = self.ends = self.stops = 0

    def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
        self.updates += 1

    def on_stop_training_error(self, trainer: Any, **kwargs: Any) -> None:
        self.stops += 1

    def on_training_run_end(self, trainer: Any, **kwargs: Any) -> None:
        self.ends += 1


def train(run_dir: Path, *callbacks: Any, epochs: int = 4, **kwargs: Any) -> tuple[Any, Any]:
    trainer = make_trainer(run_dir, *callbacks)
    result = trainer.train(samples(), epochs, resume="auto", log_every=2, **kwargs)
    return trainer, result


PLACES = [(5, "on_update_end"), (6, "on_update_end"), (6, "on_training_run_epoch_end")]


def test_when_callbacks_are_told_that_a_run_was_stopped_its_loop_is_left(tmp_path: Path) -> None:
    class Looks(TrainerCallback):
        seen: list[tuple[bool, bool]] = []

        def on_stop_training_error(self, trainer: Any, **kwargs: Any) -> None:
            self.seen.append((trainer.this_run.stop.looping, trainer.this_run.stop.stopped))

    train(tmp_path, StopAt(5), Looks())
    assert Looks.seen == [(False, True)]


@pytest.mark.parametrize(("step", "event"), PLACES)
def test_a_run_that_was_stopped_is_over_when_it_is_started_again(
    tmp_path: Path, step: int, event: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first, stopped = train(tmp_path, StopAt(step, event))
    kept = contents(tmp_path / "checkpoints")
    capsys.readouterr()
    counts = Counts()
    again, result = train(tmp_path, StopAt(step, event), counts)
    assert (counts.updates, counts.stops, counts.ends) == (0, 0, 1)
    assert again.this_run.stop.stopped
    assert updates_of(again) == (step, 0)
    assert (result.steps, result.stop_reason) == (stopped.steps, stopped.stop_reason) == (step, f"{step} are enough")
    assert result.history == stopped.history
    assert_same_run(again, first)
    assert contents(tmp_path / "checkpoints") == kept
    said = f"the run is over: {step} are enough; raise num_epochs or max_steps to train longer"
    assert said in capsys.readouterr().out


def test_it_is_over_even_without_the_callback_that_stopped_it(tmp_path: Path) -> None:
    train(tmp_path, StopAt(4))
    assert train(tmp_path)[1].steps == 4


def test_a_smaller_limit_leaves_it_over(tmp_path: Path) -> None:
    train(tmp_path, StopAt(6))
    assert train(tmp_path, epochs=3)[1].stop_reason == "6 are enough"


@pytest.mark.parametrize(("step", "event"), PLACES)
def test_a_run_that_was_stopped_goes_on_when_it_is_to_be_longer(tmp_path: Path, step: int, event: str) -> None:
    train(tmp_path / "longer", StopAt(step, event))
    longer, result = train(tmp_path / "longer", epochs=5)
    whole, expected = train(tmp_path / "whole", epochs=5)
    assert (result.steps, result.stop_reason) == (15, "all 5 epochs are done")
    assert updates_of(longer) == (step, 15 - step)
    assert result.history == expected.history
    assert_same_run(longer, whole)


def test_a_longer_run_that_dies_before_its_first_checkpoint_still_goes_on(tmp_path: Path) -> None:
    class Dies(TrainerCallback):
        def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
            raise CutError

    train(tmp_path, StopAt(6))
    with pytest.raises(CutError):
        train(tmp_path, Dies, epochs=5)
    longer, result = train(tmp_path, epochs=5)
    assert result.steps == 15
    assert updates_of(longer) == (6, 9)


def test_a_longer_run_that_is_stopped_again_is_over_again(tmp_path: Path) -> None:
    train(tmp_path, StopAt(4))
    assert train(tmp_path, StopAt(8), epochs=5)[1].stop_reason == "8 are enough"
    for epochs in (4, 5):
        assert train(tmp_path, epochs=epochs)[1].stop_reason == "8 are enough"
    longer, result = train(tmp_path, epochs=6)
    assert result.steps == 18
    assert updates_of(longer) == (8, 10)


def test_a_run_that_leaves_on_the_way_is_not_over(tmp_path: Path) -> None:
    # An error is no wish to stop: the run continues.
    class Dies(TrainerCallback):
        def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
            if trainer.progress.step == 5:
                raise CutError

    with pytest.raises(CutError):
        train(tmp_path, Dies, save_every=1)
    resumed, result = train(tmp_path)
    assert result.steps == 12
    assert updates_of(resumed) == (4, 8)


def test_a_schedule_that_depends_on_the_length_asks_here_too(tmp_path: Path) -> None:
    epochs, updates = Placeholder.NUM_EPOCHS, Placeholder.NUM_UPDATE_STEPS_PER_EPOCH
    schedule = partial(OneCycleLR, max_lr=0.1, epochs=epochs, steps_per_epoch=updates)
    train(tmp_path, StopAt(6), create_scheduler_fn=schedule)
    assert train(tmp_path, create_scheduler_fn=schedule)[1].steps == 6
    with pytest.raises(CheckpointError, match="pass extend='stretch'"):
        train(tmp_path, epochs=5, create_scheduler_fn=schedule)
    longer, result = train(tmp_path, epochs=5, create_scheduler_fn=schedule, extend="stretch")
    assert result.steps == 15
    assert updates_of(longer) == (6, 9)


# Stopped for now, or for good -----------------------------------------------------------------------------


class AsksToStop(TrainerCallback):
    """Asks to stop after the fifth update, once."""

    def __init__(self, **options: Any) -> None:
        self._options = options

    def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
        if trainer.progress.step == 5:
            trainer.request_stop("enough for today", **self._options)


def test_a_run_that_was_asked_to_stop_goes_on_when_it_is_started_again(tmp_path: Path) -> None:
    assert train(tmp_path / "run", AsksToStop())[1].steps == 5
    manifest = CheckpointStore(tmp_path / "run" / "checkpoints", Policy()).manifest(5)
    assert (manifest["stopped"], manifest["finished"]) == (None, False)
    resumed, result = train(tmp_path / "run")
    assert result.stop_reason == "all 4 epochs are done"
    assert updates_of(resumed) == (5, 7)
    assert_same_run(resumed, train(tmp_path / "whole")[0])


def test_a_run_that_was_asked_to_stop_for_good_is_over(tmp_path: Path) -> None:
    for _ in range(2):
        result = train(tmp_path, AsksToStop(for_good=True))[1]
        assert (result.steps, result.stop_reason) == (5, "enough for today")


def test_a_wish_to_stop_for_good_counts_more_than_one_for_now(tmp_path: Path) -> None:
    train(tmp_path, AsksToStop(), StopAt(5))
    assert train(tmp_path)[1].steps == 5


# Early stopping -------------------------------------------------------------------------------------------


def test_early_stopping_that_is_told_to_go_on_has_its_patience_again(tmp_path: Path) -> None:
    def patient() -> EarlyStoppingCallback:
        # Nothing is ever an improvement by so much, so the first value is the best.
        return EarlyStoppingCallback(early_stopping_patience=2, early_stopping_threshold=100.0)

    evaluated: dict[str, Any] = {"eval_dataset": samples(8)}
    stopping = patient()
    _, result = train(tmp_path, stopping, epochs=9, **evaluated)
    assert (result.epochs, stopping.early_stopping_counter) == (3, 2)
    again = patient()
    _, result = train(tmp_path, again, epochs=9, **evaluated)
    assert (result.epochs, again.early_stopping_counter) == (3, 2)
    assert again.state_dict() == stopping.state_dict()
    longer, result = train(tmp_path, patient(), epochs=10, **evaluated)
    assert result.epochs == 5
    assert updates_of(longer) == (9, 6)
    assert "in 2 evaluations" in result.stop_reason


def test_a_run_stopped_by_its_best_value_keeps_that_checkpoint_as_the_best(tmp_path: Path) -> None:
    class GoodEnough(TrainerCallback):
        def on_training_run_epoch_end(self, trainer: Any, **kwargs: Any) -> None:
            if trainer.run_history.current_epoch == 2:
                raise StopTrainingError("good enough")

    policy = Policy(keep_last=1, best="train_loss_epoch")
    trainer = make_trainer(tmp_path, GoodEnough, checkpoints=policy)
    losses = trainer.train(samples(), 4).history["train_loss_epoch"]
    assert losses[1] < losses[0]
    assert CheckpointStore(tmp_path / "checkpoints", policy).pointer("best") == 6
    assert checkpoint_steps(tmp_path) == [6]


# Which of two limits is the larger ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("now", "then", "longer"),
    [
        ((12, 4), (12, 4), False),
        ((15, 5), (12, 4), True),
        ((9, 3), (12, 4), False),
        # The same number of epochs, and more data.
        ((20, 4), (12, 4), True),
        # Limited by steps first, then by epochs.
        ((12, 4), (10, None), True),
        ((9, None), (12, 4), False),
        # Data of unknown length.
        ((None, 5), (None, 4), True),
        ((None, 4), (None, 4), False),
        # These cannot be compared: who asks for something else wants it to go on.
        ((100, None), (None, 4), True),
    ],
)
def test_a_run_is_longer_by_its_steps_or_where_these_are_unknown_by_its_epochs(
    now: tuple[int | None, int | None], then: tuple[int | None, int | None], longer: bool
) -> None:
    limits = [dict(zip(("steps", "epochs"), pair, strict=True)) for pair in (now, then)]
    assert is_longer(*limits) is longer
