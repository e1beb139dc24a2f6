"""Loops that a user wrote into `_run_train_epoch`: they are counted, logged and recorded like the trainer's own."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from treadle.callback import TrainerCallback
from treadle.trainer import Trainer


class OwnLoop(Trainer):
    """Two batches for one update, nothing of the trainer's but its data."""

    def _run_train_epoch(self, train_dl: Any) -> None:
        self.model.train()
        for place, (inputs, targets) in enumerate(train_dl, start=1):
            loss = self.loss_func(self.model(inputs), targets)
            self._update_loss_tracker(loss, len(targets))
            (loss / 2).backward()
            if place % 2 == 0 or place == len(train_dl):
                self.optimizer.step()
                self.optimizer.zero_grad()


class OldLoop(Trainer):
    """A loop as users of pytorch-accelerated wrote it: it fires events and records the loss by itself."""

    def _run_train_epoch(self, train_dl: Any) -> None:
        self.train_epoch_start()
        self._loss_tracker.reset()
        self.callback_handler.call_event("on_train_epoch_start", self)
        for batch in train_dl:
            self.callback_handler.call_event("on_train_step_start", self)
            output = self.calculate_train_batch_loss(batch)
            self._loss_tracker.update(output["loss"], output["batch_size"])
            self.callback_handler.call_event("on_train_step_end", self, batch=batch, batch_output=output)
            self.backward_step(output["loss"])
            self.optimizer_step()
            if self.scheduler is not None:
                self.scheduler_step()
            self.optimizer_zero_grad()
        self.train_epoch_end()
        self._add_epoch_loss_to_run_history()
        self.callback_handler.call_event("on_train_epoch_end", self)


class Watch(TrainerCallback):
    def __init__(self) -> None:
        self.scalars: list[dict[str, Any]] = []
        self.steps: list[int] = []

    def on_log(self, trainer: Any, scalars: Any = None, **kwargs: Any) -> None:
        self.scalars.append(scalars)

    def on_training_run_epoch_end(self, trainer: Any, **kwargs: Any) -> None:
        self.steps.append(trainer.progress.step)


def by_hand(data: TensorDataset, epochs: int) -> tuple[nn.Module, list[float]]:
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    means: list[float] = []
    for _ in range(epochs):
        total = 0.0
        batches = list(zip(data.tensors[0].split(8), data.tensors[1].split(8), strict=True))
        for place, (inputs, targets) in enumerate(batches, start=1):
            loss = nn.functional.mse_loss(model(inputs), targets)
            total += loss.item() * len(targets)
            (loss / 2).backward()
            if place % 2 == 0 or place == len(batches):
                optimizer.step()
                optimizer.zero_grad()
        means.append(total / len(data))
    return model, means


def test_a_loop_of_the_users_counts_steps_and_samples_logs_and_records_its_loss(
    make_trainer: Any, ragged: TensorDataset
) -> None:
    watch = Watch()
    trainer = make_trainer(watch, kind=OwnLoop)
    result = trainer.train(ragged, 2, eval_dataset=ragged, train_dataloader_kwargs={"shuffle": False})
    model, losses = by_hand(ragged, 2)
    assert torch.equal(trainer.model.weight, model.weight)
    assert result.history["train_loss_epoch"] == losses
    assert len(result.history["eval_loss_epoch"]) == 2
    assert (result.epochs, result.steps, trainer.progress.samples) == (2, 4, 38)
    assert watch.steps == [2, 4]
    assert [scalars["train_loss"] for scalars in watch.scalars] == losses


def test_a_loop_that_records_its_loss_itself_records_it_once(make_trainer: Any, ragged: TensorDataset) -> None:
    plain, foreign = make_trainer(), make_trainer(kind=OldLoop)
    expected = plain.train(ragged, 3)
    result = foreign.train(ragged, 3)
    assert torch.equal(foreign.model.weight, plain.model.weight)
    assert result.history == expected.history
    assert (result.steps, result.epochs) == (expected.steps, expected.epochs) == (9, 3)
    assert foreign.progress.samples == plain.progress.samples == 57


def test_a_second_run_of_such_a_loop_goes_on_recording_in_a_kept_history(
    make_trainer: Any, ragged: TensorDataset
) -> None:
    for kind in (OwnLoop, OldLoop):
        trainer = make_trainer(kind=kind)
        trainer.train(ragged, 2)
        result = trainer.train(ragged, 2, reset_run_history=False)
        assert len(result.history["train_loss_epoch"]) == 4


def test_a_schedule_moves_on_with_the_updates_of_such_a_loop(make_trainer: Any, ragged: TensorDataset) -> None:
    from torch.optim.lr_scheduler import StepLR

    trainer = make_trainer(kind=OldLoop, lr=1.0)
    trainer.train(ragged, 1, create_scheduler_fn=lambda optimizer: StepLR(optimizer, 1, gamma=0.5))
    assert trainer.optimizer.param_groups[0]["lr"] == 0.125


def test_an_override_that_only_adds_to_the_trainers_loop_is_the_trainers_loop(
    make_trainer: Any, ragged: TensorDataset
) -> None:
    class Adds(Trainer):
        def _run_train_epoch(self, train_dl: Any) -> None:
            super()._run_train_epoch(train_dl)

    watch = Watch()
    plain, adding = make_trainer(), make_trainer(watch, kind=Adds)
    expected = plain.train(ragged, 2)
    assert adding.train(ragged, 2) == expected
    assert torch.equal(adding.model.weight, plain.model.weight)
    assert (watch.steps, len(watch.scalars)) == ([3, 6], 2)


def test_the_step_limit_ends_such_a_run_at_the_next_end_of_an_epoch(make_trainer: Any, ragged: TensorDataset) -> None:
    result = make_trainer(kind=OldLoop).train(ragged, 5, max_steps=4)
    assert (result.steps, result.epochs, result.stop_reason) == (6, 2, "all 4 steps are done")


def test_the_hooks_that_count_are_gone_after_the_run(make_trainer: Any, ragged: TensorDataset) -> None:
    trainer = make_trainer(kind=OwnLoop)
    trainer.train(ragged, 1)
    trainer.optimizer.step()
    assert trainer.progress.step == 2


def test_an_error_in_such_a_loop_removes_the_hooks_and_is_raised(make_trainer: Any, ragged: TensorDataset) -> None:
    class Fails(Trainer):
        def _run_train_epoch(self, train_dl: Any) -> None:
            raise RuntimeError("out of ideas")

    trainer = make_trainer(kind=Fails)
    with pytest.raises(RuntimeError, match="out of ideas"):
        trainer.train(ragged, 1)
    trainer.optimizer.step()
    assert trainer.progress.step == 0


# What is due by steps -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("every", "evaluated"), [(1, [3, 6, 9, 12]), (4, [6, 9, 12]), (5, [6, 12]), (13, [])])
def test_an_evaluation_due_by_steps_comes_at_the_end_of_the_epoch_of_such_a_loop(
    make_trainer: Any, ragged: TensorDataset, every: int, evaluated: list[int]
) -> None:
    steps: list[int] = []

    class Evaluations(TrainerCallback):
        def on_eval_epoch_start(self, trainer: Any, **kwargs: Any) -> None:
            steps.append(trainer.progress.step)

    # Three updates an epoch.
    result = make_trainer(Evaluations, kind=OldLoop).train(ragged, 4, eval_dataset=ragged, eval_every=every)
    assert steps == evaluated
    assert len(result.history.get("eval_loss_epoch", [])) == len(evaluated)


def test_the_console_says_once_what_rounds_up_to_the_end_of_an_epoch(
    make_trainer: Any, ragged: TensorDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = make_trainer(kind=OldLoop, run_dir=tmp_path)
    trainer.train(ragged, 3, eval_dataset=ragged, eval_every="2 steps", save_every="1 step")
    said = "eval_every='2 steps' and save_every='1 step' round up to the end of an epoch: its loop is your own"
    assert capsys.readouterr().out.count(said) == 1
    assert said in (tmp_path / "log.txt").read_text()


def test_nothing_is_said_where_nothing_rounds_up(
    make_trainer: Any, ragged: TensorDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    class Adds(Trainer):
        def _run_train_epoch(self, train_dl: Any) -> None:
            super()._run_train_epoch(train_dl)

    make_trainer(kind=OldLoop).train(ragged, 2, eval_dataset=ragged)
    adding = make_trainer(kind=Adds)
    result = adding.train(ragged, 2, eval_dataset=ragged, eval_every="2 steps")
    assert "round up" not in capsys.readouterr().out
    assert len(result.history["eval_loss_epoch"]) == 3
