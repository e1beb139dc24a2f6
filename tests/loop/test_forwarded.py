"""The loaders that callbacks and loops of the user's find: gone through at will, and replaced."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.execution import taped
from tests.interrupting import CutAt, CutError, assert_same_run, check, make_trainer, samples, updates_of
from treadle import Trainer, TrainerCallback
from treadle.data import InMemoryDataset
from treadle.errors import DataError

DATA = samples(22)
SEVENS = samples(21)
EVENTS = (
    "on_training_run_start",
    "on_train_epoch_start",
    "on_update_start",
    "on_update_end",
    "on_train_epoch_end",
    "on_eval_epoch_start",
    "on_eval_epoch_end",
    "on_training_run_epoch_end",
    "on_training_run_end",
)
STEP_EVENTS = ("on_train_step_start", "on_train_step_end", "on_eval_step_start", "on_eval_step_end")


class GoesThrough(TrainerCallback):
    """Goes through the training and the evaluation data."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []

    def go(self, trainer: Any, **kwargs: Any) -> None:
        next(iter(trainer._train_dataloader))
        counts = [sum(len(batch[0]) for batch in one) for one in (trainer._train_dataloader, trainer._eval_dataloader)]
        self.seen.append((counts[0], counts[1]))


def goes_through_at(event: str) -> GoesThrough:
    """Return a callback that goes through the data at one event, each time it comes."""
    made: GoesThrough = type("GoesThroughAt", (GoesThrough,), {event: GoesThrough.go})()
    return made


def augmented(rows: list[Any]) -> Any:
    inputs, targets = (torch.stack(column) for column in zip(*rows, strict=True))
    return inputs + torch.rand_like(inputs) / 10, targets


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulation": {"gradient_accumulation_steps": 2},
    "augmentation": {"collate_fn": augmented},
    "data in memory": {"dataset": InMemoryDataset(*DATA.tensors)},
    "a loader that shuffles": {"dataset": DataLoader(DATA, batch_size=4, shuffle=True)},
}


def run(*callbacks: Any, kind: type[Trainer] = Trainer, dataset: Any = DATA, **given: Any) -> Any:
    trainer = make_trainer(None, *callbacks, kind=kind)
    options = {} if isinstance(dataset, DataLoader) else {"per_device_batch_size": 4}
    trainer.train(dataset, num_epochs=3, eval_dataset=samples(10), eval_every="4 steps", **options, **given)
    return trainer


@pytest.mark.parametrize("case", list(CASES))
def test_a_callback_goes_through_the_data_and_the_run_does_not_notice(case: str) -> None:
    expected = run(**CASES[case])
    for event in (*EVENTS, *STEP_EVENTS):
        callback = goes_through_at(event)
        found = run(callback, **CASES[case])
        assert callback.seen
        assert set(callback.seen) == {(22, 10)}
        assert_same_run(found, expected)


@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize("event", [event for event in EVENTS if "start" not in event or "train" in event])
def test_a_callback_goes_through_the_data_of_recorded_steps_and_they_do_not_notice(event: str, in_memory: bool) -> None:
    data = InMemoryDataset(*taped.data().tensors) if in_memory else taped.data()
    options = {"dataset": data, "eval_dataset": taped.data(10), "dropout": 0.5}
    callback = goes_through_at(event)
    found, _ = taped.train(taped.Recorded, callbacks=[callback], **options)
    expected, _ = taped.train(Trainer, **options)
    assert set(callback.seen) == {(40, 10)}
    assert found.recorder.replays > 2
    taped.same_state(found, expected)


@pytest.mark.slow
def test_a_callback_goes_through_data_with_workers_and_the_run_does_not_notice() -> None:
    workers = {"train_dataloader_kwargs": {"num_workers": 1}, "collate_fn": augmented}
    callback = goes_through_at("on_train_epoch_start")
    assert_same_run(run(callback, **workers), run(**workers))
    assert callback.seen == [(22, 10)] * 3


@pytest.mark.parametrize("event", ["on_train_epoch_start", "on_update_end"])
def test_a_run_that_is_gone_through_and_cut_goes_on_where_it_was(tmp_path: Path, event: str) -> None:
    def train(trainer: Any) -> None:
        trainer.train(DATA, num_epochs=2, per_device_batch_size=4, eval_dataset=DATA, save_every=1, resume="auto")

    check(tmp_path, partial(_with_look, event), train, [3, 8], saved=1)


def _with_look(event: str, run_dir: Path, *callbacks: Any) -> Any:
    return make_trainer(run_dir, goes_through_at(event), *callbacks)


# Loops and evaluations of your own ---------------------------------------------------------------------------


class OwnEvaluation(Trainer):
    """Evaluates in a loop of its own."""

    sizes: tuple[int, ...] = ()

    @torch.no_grad()
    def _run_eval_epoch(self, valid_dl: Any, is_training: bool = True, is_intermediate: bool = False) -> None:
        self.model.eval()
        found = [(len(inputs), self.loss_func(self.model(inputs), targets)) for inputs, targets in valid_dl]
        self.sizes += (sum(size for size, _ in found),)
        loss = sum(size * float(one) for size, one in found) / self.sizes[-1]
        self.run_history.update_metric("eval_loss_epoch", loss)


@pytest.mark.parametrize("with_kind", [False, True])
def test_an_evaluation_of_ones_own_is_given_the_arguments_that_it_takes(with_kind: bool) -> None:
    class Short(OwnEvaluation):
        def _run_eval_epoch(self, valid_dl: Any) -> None:  # type: ignore[override]
            super()._run_eval_epoch(valid_dl)

    class OfTheContract(OwnEvaluation):
        def _run_eval_epoch(self, valid_dl: Any, is_training: bool = True) -> None:  # type: ignore[override]
            super()._run_eval_epoch(valid_dl, is_training)

    own = make_trainer(None, kind=OfTheContract if with_kind else Short)
    own.train(samples(8), num_epochs=1, per_device_batch_size=4, eval_dataset=samples(10), eval_every="1 steps")
    own.evaluate(samples(7))
    assert own.sizes == (10, 10, 7)


def test_an_evaluation_of_ones_own_sees_all_the_data_in_every_epoch() -> None:
    own = make_trainer(None, kind=OwnEvaluation)
    expected = make_trainer(None)
    for trainer in (own, expected):
        trainer.train(DATA, num_epochs=3, eval_dataset=samples(10), per_device_batch_size=4)
    assert own.sizes == (10, 10, 10)
    losses = [one.run_history.get_metric_values("eval_loss_epoch") for one in (own, expected)]
    assert losses[0] == pytest.approx(losses[1])


class OwnLoop(Trainer):
    """Trains in a loop of its own, in which one looks at the data first and within."""

    looks = False
    beside = False

    def _run_train_epoch(self, train_dl: Any) -> None:
        self.train_epoch_start()
        self.callback_handler.call_event("on_train_epoch_start", self)
        for inputs, targets in self._train_dataloader if self.beside else train_dl:
            if self.looks:
                assert sum(len(batch[0]) for batch in self._train_dataloader) == 22
            loss = self.loss_func(self.model(inputs), targets)
            self._update_loss_tracker(loss, len(targets))
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.callback_handler.call_event("on_update_end", self)
        self.train_epoch_end()


class Looking(OwnLoop):
    looks = True


class Beside(OwnLoop):
    beside = True


@pytest.mark.parametrize("kind", [OwnLoop, Looking])
@pytest.mark.parametrize("event", ["on_train_epoch_start", "on_update_end"])
def test_a_loop_of_ones_own_draws_the_runs_pass_whoever_looks_at_the_data(kind: type[Trainer], event: str) -> None:
    expected, found = run(kind=OwnLoop), run(goes_through_at(event), kind=kind)
    assert_same_run(found, expected)
    assert (found.progress.step, found.progress.samples) == (18, 66)


def test_a_loop_that_goes_through_the_trainers_loader_is_counted_too() -> None:
    found = run(kind=Beside)
    assert_same_run(found, run(kind=OwnLoop))
    assert (found.progress.step, found.progress.samples) == (18, 66)


def test_a_loop_of_ones_own_resumes_exactly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def train(trainer: Any) -> None:
        trainer.train(DATA, num_epochs=3, per_device_batch_size=4, resume="auto")

    whole = make_trainer(tmp_path / "whole", kind=Looking)
    train(whole)
    with pytest.raises(CutError):
        train(make_trainer(tmp_path / "cut", CutAt(8), kind=Looking))
    resumed = make_trainer(tmp_path / "cut", kind=Looking)
    train(resumed)
    assert "resuming from step 6 of" in capsys.readouterr().out
    assert updates_of(resumed)[0] == 6
    assert_same_run(resumed, whole)


class StatisticsFirst(Trainer):
    """Goes through the data before it trains as always."""

    counts: tuple[int, ...] = ()

    def _run_train_epoch(self, train_dl: Any) -> Any:
        self.counts += (sum(len(batch[0]) for batch in train_dl),)
        return super()._run_train_epoch(train_dl)


def test_a_pass_before_the_trainers_own_epoch_takes_nothing_from_it() -> None:
    found, expected = run(kind=StatisticsFirst), run()
    assert found.counts == (22, 22, 22)
    assert found.progress.step == expected.progress.step == 18
    for one, other in zip(found.model.parameters(), expected.model.parameters(), strict=True):
        assert torch.equal(one, other)


# Other loaders ------------------------------------------------------------------------------------------------


class Seen(Trainer):
    """Notes how many samples each update had, and each evaluation."""

    trained: tuple[int, ...] = ()
    evaluated: tuple[int, ...] = ()

    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        self.trained += (len(batch[0]),)
        return super().calculate_train_batch_loss(batch)

    def calculate_eval_batch_loss(self, batch: Any) -> dict[str, Any]:
        self.evaluated += (len(batch[0]),)
        return super().calculate_eval_batch_loss(batch)


class Replaces(TrainerCallback):
    """Gives the trainer other loaders once the first epoch is trained."""

    def on_training_run_epoch_end(self, trainer: Any, **kwargs: Any) -> None:
        if trainer.progress.epoch == 0:
            trainer._train_dataloader = DataLoader(samples(12), batch_size=6, shuffle=True)
            trainer._eval_dataloader = DataLoader(samples(9), batch_size=9)


def seen(run_dir: Path | None, *callbacks: Any) -> Any:
    return make_trainer(run_dir, Replaces(), *callbacks, kind=Seen)


def train_seen(trainer: Any) -> None:
    trainer.train(SEVENS, num_epochs=3, eval_dataset=samples(10), per_device_batch_size=7)


def test_a_loader_that_is_assigned_is_what_the_run_goes_on_with() -> None:
    trainer = seen(None)
    train_seen(trainer)
    assert trainer.trained == (7, 7, 7) + (6, 6) * 2
    assert trainer.evaluated == (7, 3) + (9,) * 2
    assert len(trainer._train_dataloader.dataset) == 12
    assert sum(len(batch[0]) for batch in trainer._train_dataloader) == 12


class ReplacesAtStart(TrainerCallback):
    def on_train_epoch_start(self, trainer: Any, **kwargs: Any) -> None:
        trainer._train_dataloader = DataLoader(samples(12), batch_size=3, shuffle=True)


def test_the_place_in_a_loader_that_is_assigned_is_saved(tmp_path: Path) -> None:
    def train(trainer: Any) -> None:
        trainer.train(SEVENS, num_epochs=3, per_device_batch_size=7, save_every=1, resume="auto")

    def make(run_dir: Path, *callbacks: Any) -> Any:
        return make_trainer(run_dir, ReplacesAtStart(), *callbacks)

    check(tmp_path, make, train, [2, 7], saved=1)


class OtherData(Seen):
    """Hands other loaders to the loops of the trainer."""

    def _run_train_epoch(self, train_dl: Any) -> Any:
        return super()._run_train_epoch(DataLoader(samples(12), batch_size=3, shuffle=True))

    def _run_eval_epoch(self, valid_dl: Any, *args: Any, **kwargs: Any) -> Any:
        return super()._run_eval_epoch(DataLoader(samples(9), batch_size=9), *args, **kwargs)


def test_loops_that_are_called_with_other_loaders_take_these() -> None:
    trainer = make_trainer(None, kind=OtherData)
    trainer.train(SEVENS, num_epochs=2, eval_dataset=samples(10), per_device_batch_size=7)
    assert trainer.trained == (3,) * 8
    assert trainer.evaluated == (9, 9)
    assert len(trainer._train_dataloader.dataset) == 21


def test_a_loop_that_is_called_with_another_loader_is_resumed_in_it(tmp_path: Path) -> None:
    def train(trainer: Any) -> None:
        trainer.train(SEVENS, num_epochs=2, per_device_batch_size=7, save_every=1, resume="auto")

    check(tmp_path, partial(make_trainer, kind=OtherData), train, [2, 6], saved=1)


class OwnRun(Seen):
    """A run of its own, which trains on other data than it was given."""

    def _run_training(self) -> None:
        self.callback_handler.call_event("on_training_run_start", self)
        for _ in range(2):
            self._run_train_epoch(DataLoader(samples(12), batch_size=3))
            self.run_history._increment_epoch()


def test_a_run_of_ones_own_trains_on_what_it_hands_to_its_epochs() -> None:
    trainer = make_trainer(None, kind=OwnRun)
    trainer.train(SEVENS, num_epochs=2, per_device_batch_size=7)
    assert trainer.trained == (3,) * 8


def test_a_loader_can_be_assigned_where_there_is_no_run() -> None:
    trainer = make_trainer(None, kind=Seen)
    trainer._eval_dataloader = DataLoader(SEVENS, batch_size=7)
    trainer._run_eval_epoch(trainer._eval_dataloader)
    assert trainer.evaluated == (7, 7, 7)
    trainer._eval_dataloader = None
    assert trainer._eval_dataloader is None
    assert isinstance(trainer.model, nn.Module)


@pytest.mark.parametrize("given", [SEVENS, 5])
def test_what_gives_no_batches_cannot_be_assigned(given: Any) -> None:
    trainer = make_trainer(None)
    text = f"is a {type(given).__name__}, which gives no batches; make a DataLoader of the data set"
    for name in ("_train_dataloader", "_eval_dataloader"):
        with pytest.raises(DataError, match=f"^{name} {text}"):
            setattr(trainer, name, given)
    with pytest.raises(DataError, match=f"^valid_dl {text}"):
        trainer._run_eval_epoch(given)
