"""The internal methods that the page lists: programs that override them as pytorch-accelerated's users do work."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader

from tests.contract.own_loops import OwnEvalEpoch, OwnEverything, OwnTrainEpoch, OwnTraining
from tests.contract.test_trainer_page import samples
from treadle import Trainer, TrainerCallback
from treadle.callbacks import EarlyStoppingCallback, SaveBestModelCallback
from treadle.errors import ConfigError, DataError
from treadle.loop.run_config import TrainerRunConfig

OWN = (OwnTrainEpoch, OwnEvalEpoch, OwnTraining, OwnEverything)


class Events(TrainerCallback):
    """Notes events in their order, and that it was closed."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def close(self) -> None:
        self.seen.append("close")


for name in (
    "on_training_run_start",
    "on_train_epoch_start",
    "on_train_epoch_end",
    "on_eval_epoch_end",
    "on_training_run_epoch_end",
    "on_stop_training_error",
    "on_training_run_end",
):
    setattr(Events, name, lambda self, trainer, _name=name, **kwargs: self.seen.append(_name))


def build(kind: type[Trainer], *callbacks: Any, **options: Any) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    return kind(model, nn.CrossEntropyLoss(), optimizer, callbacks, device="cpu", seed=3, **options)


def weights(trainer: Any) -> torch.Tensor:
    return torch.cat([one.detach().reshape(-1) for one in trainer.model.parameters()])


@pytest.mark.parametrize("kind", OWN)
def test_a_loop_after_pytorch_accelerateds_gives_the_bits_events_and_metrics_of_the_trainers_own(
    kind: type[Trainer],
) -> None:
    found = []
    for each in (Trainer, kind):
        events = Events()
        trainer = build(each, events)
        schedule = {"create_scheduler_fn": lambda optimizer: StepLR(optimizer, 3, gamma=0.5)}
        result = trainer.train(samples(40, 0), 3, samples(20, 1), per_device_batch_size=8, **schedule)
        assert not trainer.this_run.stop.looping
        facts = (result.steps, result.epochs, result.stop_reason, trainer.run_history.current_epoch)
        found.append((weights(trainer).tolist(), events.seen, result.history, facts))
    assert found[1] == found[0]
    assert found[0][3] == (15, 3, "all 3 epochs are done", 4)


@pytest.mark.parametrize("kind", OWN)
def test_accumulation_clipping_and_a_limit_by_steps_work_in_such_loops(kind: type[Trainer]) -> None:
    found = []
    for each in (Trainer, kind):
        trainer = build(each)
        options = {"gradient_accumulation_steps": 2, "gradient_clip_value": 0.01, "max_num_train_steps": 5}
        result = trainer.train(samples(40, 0), 4, samples(20, 1), per_device_batch_size=8, **options)
        found.append((result.steps, len(result.history["eval_loss_epoch"]), result.stop_reason))
        assert weights(trainer).isfinite().all()
    assert found == [(5, 2, "all 5 steps are done")] * 2


def test_the_loss_of_an_epoch_survives_an_own_evaluation_in_the_middle_of_it() -> None:
    losses = []
    for each in (Trainer, OwnEvalEpoch):
        result = build(each).train(samples(40, 0), 2, samples(20, 1), per_device_batch_size=8, eval_every="2 steps")
        losses.append(result.history["train_loss_epoch"])
    assert len(losses[0]) == 2
    assert losses[1] == losses[0]


def test_the_model_is_in_training_mode_again_after_an_own_evaluation() -> None:
    modes = []

    class Looks(TrainerCallback):
        def on_update_end(self, trainer: Trainer, **kwargs: Any) -> None:
            modes.append(trainer.model.training)

    build(OwnEvalEpoch, Looks).train(samples(40, 0), 1, samples(20, 1), per_device_batch_size=8, eval_every="2 steps")
    assert modes == [True] * 5


def test_an_own_evaluation_gives_evaluate_its_metrics() -> None:
    plain, own = build(Trainer), build(OwnEvalEpoch)
    assert own.evaluate(samples(20, 1)) == plain.evaluate(samples(20, 1))
    assert own.run_history.get_metric_names() == {"evaluation_loss"}


def test_an_own_evaluation_that_saw_no_batch_is_an_error() -> None:
    class Empty(OwnEvalEpoch):
        def _run_eval_epoch(self, valid_dl: Any, is_training: bool = True, is_intermediate: bool = False) -> Any:
            super()._run_eval_epoch([], is_training)

    with pytest.raises(DataError, match="eval_loss_epoch cannot be recorded: no loss was given"):
        build(Empty).train(samples(16, 0), 1, samples(8, 1))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_such_loops_train_and_evaluate_in_the_precision_of_the_run(precision: str) -> None:
    kinds = []

    class Notes(nn.Linear):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            outputs = super().forward(inputs)
            kinds.append((self.training, outputs.dtype))
            return outputs

    def run(kind: type[Trainer]) -> tuple[Any, Any]:
        torch.manual_seed(0)
        model = nn.Sequential(Notes(4, 3))
        trainer = kind(
            model, nn.CrossEntropyLoss(), SGD(model.parameters(), lr=0.1), (), device="cpu", seed=3, precision=precision
        )
        kinds.clear()
        history = trainer.train(samples(40, 0), 2, samples(20, 1)).history
        assert not model._forward_hooks
        return weights(trainer), (history, list(kinds))

    (plain, expected), (own, found) = run(Trainer), run(OwnEverything)
    half = torch.float32 if precision == "fp32" else torch.bfloat16
    assert set(expected[1]) == set(found[1]) == {(True, half), (False, half)}
    assert torch.equal(own, plain)
    assert found == expected


def test_it_is_said_once_that_a_loop_of_ones_own_does_not_weigh_by_class_weights(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = "the loss is a mean over the weights of the targets that count, and your own loop over batches makes no"
    weighted = nn.CrossEntropyLoss(torch.tensor([1.0, 10.0, 0.1]))
    for loss, parts, times in ((weighted, 2, 1), (weighted, 1, 0), (nn.CrossEntropyLoss(), 2, 0)):
        trainer = build(OwnTrainEpoch)
        trainer.loss_func = loss
        trainer.train(samples(16, 0), 2, gradient_accumulation_steps=parts, per_device_batch_size=4)
        assert capsys.readouterr().out.count(said) == times

    class Wraps(Trainer):
        def _run_train_epoch(self, train_dl: Any) -> None:
            super()._run_train_epoch(train_dl)

    wraps = build(Wraps)
    wraps.loss_func = weighted
    wraps.train(samples(16, 0), 2, gradient_accumulation_steps=2, per_device_batch_size=4)
    assert said not in capsys.readouterr().out


def test_it_is_said_once_that_fp16_needs_more_than_a_loop_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    said = "precision='fp16' is not applied to forward passes in a loop of your own"
    build(OwnTrainEpoch, precision="fp16").train(samples(16, 0), 2)
    assert capsys.readouterr().out.count(said) == 1
    build(OwnTrainEpoch, precision="bf16").train(samples(16, 0), 2)
    assert said not in capsys.readouterr().out


def test_a_forward_pass_that_fails_in_such_a_loop_leaves_nothing_behind() -> None:
    class Fails(OwnTrainEpoch):
        def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
            self.model(batch[1])
            raise AssertionError("it has failed before")

    trainer = build(Fails, precision="bf16")
    with pytest.raises(RuntimeError, match=r"mat1|dtype|shape|size"):
        trainer.train(samples(16, 0), 1)
    assert not torch.is_autocast_enabled("cpu")
    assert not trainer.model._forward_hooks


# A run of your own -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [OwnTraining, OwnEverything])
@pytest.mark.parametrize("kept", [1, 2])
def test_an_own_run_is_saved_and_resumed_with_the_epochs_that_are_left(
    kind: type[Trainer], kept: int, tmp_path: Path
) -> None:
    data, evaluation = samples(40, 0), samples(20, 1)
    whole = build(kind)
    expected = whole.train(data, 3, evaluation, per_device_batch_size=8)
    build(kind, run_dir=tmp_path / "run").train(data, kept, evaluation, per_device_batch_size=8)
    resumed = build(kind, run_dir=tmp_path / "run")
    begun = []

    class Notes(TrainerCallback):
        def on_train_epoch_start(self, trainer: Trainer, **kwargs: Any) -> None:
            begun.append((trainer.progress.epoch, trainer.progress.step))

    resumed.callback_handler.add_callback(Notes)
    result = resumed.train(data, 3, evaluation, per_device_batch_size=8, resume="auto")
    assert begun == [(epoch, 5 * epoch) for epoch in range(kept, 3)]
    assert torch.equal(weights(resumed), weights(whole))
    assert result.history == expected.history
    assert (result.epochs, result.steps) == (3, 15)


def test_an_own_run_that_is_resumed_inside_an_epoch_goes_on_there(tmp_path: Path) -> None:
    class Dies(TrainerCallback):
        def on_update_start(self, trainer: Trainer, **kwargs: Any) -> None:
            if trainer.progress.step == 8:
                raise RuntimeError("power cut")

    data = samples(40, 0)
    whole = build(OwnTraining)
    whole.train(data, 3, per_device_batch_size=8)
    with pytest.raises(RuntimeError, match="power cut"):
        build(OwnTraining, Dies, run_dir=tmp_path / "run").train(data, 3, per_device_batch_size=8, save_every=7)
    steps = []

    class Notes(TrainerCallback):
        def on_update_start(self, trainer: Trainer, **kwargs: Any) -> None:
            steps.append(trainer.progress.step)

    resumed = build(OwnTraining, Notes, run_dir=tmp_path / "run")
    assert resumed.train(data, 3, per_device_batch_size=8, save_every=7, resume="auto").steps == 15
    assert steps == list(range(7, 15))
    assert torch.equal(weights(resumed), weights(whole))


def test_an_own_run_is_stopped_by_callbacks_and_stays_stopped(tmp_path: Path) -> None:
    def trainer() -> Any:
        stops = EarlyStoppingCallback(early_stopping_threshold=100.0)
        return build(OwnTraining, stops, Events(), run_dir=tmp_path / "run")

    first = trainer()
    result = first.train(samples(16, 0), 5, samples(8, 1))
    assert (result.epochs, result.steps) == (2, 4)
    assert "eval_loss_epoch did not improve" in result.stop_reason
    events = first.callback_handler.callbacks[1].seen
    assert events[-3:] == ["on_stop_training_error", "on_training_run_end", "close"]
    again = trainer().train(samples(16, 0), 5, samples(8, 1), resume="auto")
    assert (again.epochs, again.steps, again.stop_reason) == (2, 4, result.stop_reason)


def test_the_end_of_an_own_run_is_saved_before_the_best_weights_are_loaded(tmp_path: Path) -> None:
    """What is resumed goes on from the last weights, and not from the best."""
    data, evaluation = samples(40, 0), samples(20, 1)

    class Shaken(OwnTraining):
        def training_run_epoch_end(self) -> None:
            # Only the first epoch is any good.
            self.run_history.update_metric("score", float(self.run_history.current_epoch))

    whole = build(Shaken)
    whole.train(data, 3, evaluation, per_device_batch_size=8)
    best = SaveBestModelCallback(save_path=tmp_path / "best.pt", watch_metric="score")
    first = build(Shaken, best, run_dir=tmp_path / "run")
    first.train(data, 2, evaluation, per_device_batch_size=8)
    resumed = build(Shaken, run_dir=tmp_path / "run")
    assert resumed.train(data, 3, evaluation, per_device_batch_size=8, resume="auto").steps == 15
    assert torch.equal(weights(resumed), weights(whole))


def test_an_own_run_that_fails_closes_its_callbacks() -> None:
    class Fails(OwnTraining):
        def training_run_epoch_end(self) -> None:
            raise RuntimeError("out of luck")

    events = Events()
    trainer = build(Fails, events)
    with pytest.raises(RuntimeError, match="out of luck"):
        trainer.train(samples(16, 0), 2)
    assert events.seen[-1] == "close"
    assert "_run_train_epoch" not in vars(trainer)
    assert "training_run_end" not in vars(trainer)


def test_a_run_that_only_adds_to_the_trainers_own_is_no_other_run() -> None:
    class Adds(Trainer):
        def _run_training(self) -> None:
            self.before = self.progress.step
            super()._run_training()
            self.after = self.progress.step

    found = []
    for kind in (Trainer, Adds):
        events = Events()
        trainer = build(kind, events)
        result = trainer.train(samples(40, 0), 2, samples(20, 1), per_device_batch_size=8)
        found.append((weights(trainer).tolist(), events.seen, result.history, result.stop_reason))
    assert found[1] == found[0]
    assert (trainer.before, trainer.after) == (0, 10)


def test_a_run_that_ends_by_itself_says_so() -> None:
    class OneEpoch(Trainer):
        def _run_training(self) -> None:
            self._run_train_epoch(self._train_dataloader)

    result = build(OneEpoch).train(samples(16, 0), 5)
    assert (result.epochs, result.steps, result.stop_reason) == (1, 2, "its own _run_training ended")


def test_updates_outside_of_an_epoch_are_refused_in_an_own_run() -> None:
    class Inline(Trainer):
        def _run_training(self) -> None:
            for batch in self._train_dataloader or ():
                self.backward_step(self.calculate_train_batch_loss(batch)["loss"])
                self.optimizer.step()

    with pytest.raises(ConfigError, match="SGD stepped in a _run_training of your own but outside of _run_train_epoch"):
        build(Inline).train(samples(16, 0), 1)


def test_a_schedule_by_epochs_moves_in_an_own_run() -> None:
    rates = []

    class Notes(TrainerCallback):
        def on_train_epoch_start(self, trainer: Trainer, **kwargs: Any) -> None:
            rates.append(trainer.optimizer.param_groups[0]["lr"])

    schedule = {"create_scheduler_fn": lambda optimizer: StepLR(optimizer, 1, gamma=0.5)}
    build(OwnTraining, Notes).train(samples(16, 0), 3, scheduler_interval="epoch", **schedule)
    assert rates == [0.1, 0.05, 0.025]


def test_a_run_of_ones_own_cannot_be_rolled_back(tmp_path: Path) -> None:
    trainer = build(OwnTraining, run_dir=tmp_path, on_nonfinite="rollback")
    with pytest.raises(ConfigError, match="a _run_training of your own would not notice; use 'raise' or 'skip'"):
        trainer.train(samples(16, 0), 1)


def test_it_is_said_that_an_own_run_evaluates_when_it_likes(capsys: pytest.CaptureFixture[str]) -> None:
    said = "eval_every='2 epochs' has no effect: your own _run_training says when to evaluate"
    build(OwnTraining).train(samples(16, 0), 1, samples(8, 1))
    assert said not in capsys.readouterr().out
    build(OwnTraining).train(samples(16, 0), 1, samples(8, 1), eval_every="2 epochs")
    assert said in capsys.readouterr().out


# Settings -----------------------------------------------------------------------------------------------------------

OF_PYTORCH_ACCELERATED = [
    "num_epochs",
    "train_per_device_batch_size",
    "train_dl_kwargs",
    "eval_per_device_batch_size",
    "eval_dl_kwargs",
    "gradient_accumulation_steps",
    "gradient_clip_value",
    "train_total_batch_size",
    "eval_total_batch_size",
    "num_update_steps_per_epoch",
    "num_local_update_steps_per_epoch",
    "max_num_train_steps",
    "is_local_process_zero",
    "is_world_process_zero",
    "is_distributed",
    "mixed_precision",
    "num_processes",
]
VALUES = (2, 8, {}, 8, {}, 1, None, 8, 8, 2, 2, 5, True, True, False, "no", 1)


def test_a_run_config_is_made_of_pytorch_accelerateds_arguments_by_place_and_by_name() -> None:
    named = dict(zip(OF_PYTORCH_ACCELERATED, VALUES, strict=True))
    assert TrainerRunConfig(*VALUES) == TrainerRunConfig(**named)
    shown = TrainerRunConfig(**named).to_dict()
    assert {name: shown[name] for name in named} == named


def test_a_run_config_whose_loader_arguments_cannot_be_copied_is_shown() -> None:
    sampler = torch.utils.data.RandomSampler(samples(4, 0), generator=torch.Generator())
    config = TrainerRunConfig(
        **dict(zip(OF_PYTORCH_ACCELERATED, VALUES, strict=True)) | {"train_dl_kwargs": {"a": sampler}}
    )
    assert config.to_dict()["train_dl_kwargs"] == {"a": "RandomSampler"}


class WholeConfig(Trainer):
    """Makes its config by itself, as pytorch-accelerated does."""

    def _create_run_config(
        self,
        per_device_batch_size: Any,
        num_epochs: Any,
        gradient_accumulation_steps: Any,
        max_num_train_steps: Any,
        gradient_clip_value: Any,
    ) -> TrainerRunConfig:
        size, processes = (self._train_dl_kwargs or {}).get("batch_size", per_device_batch_size), self._accelerator
        length = 0 if self._train_dataloader is None else len(self._train_dataloader)
        updates = math.ceil(length / gradient_accumulation_steps)
        return TrainerRunConfig(
            num_epochs,
            size,
            self._train_dl_kwargs or {},
            size,
            self._eval_dl_kwargs or {},
            gradient_accumulation_steps,
            gradient_clip_value,
            size * processes.num_processes * gradient_accumulation_steps,
            size * processes.num_processes,
            updates,
            updates,
            num_epochs * updates + 1 if max_num_train_steps is None else max_num_train_steps,
            processes.is_local_main_process,
            processes.is_main_process,
            False,
            processes.mixed_precision,
            processes.num_processes,
        )


def test_a_config_made_after_pytorch_accelerateds_runs_and_is_completed() -> None:
    plain, own = build(Trainer), build(WholeConfig)
    for trainer in (plain, own):
        assert trainer.train(samples(40, 0), 2, samples(20, 1), gradient_accumulation_steps=2).steps == 6
        trainer.evaluate(samples(20, 1))
    assert torch.equal(weights(own), weights(plain))
    assert own.run_config.num_epochs == 1
    own.train(samples(40, 0), 2)
    assert (own.run_config.device, own.run_config.seed, own.run_config.mixed_precision) == ("cpu", 3, "fp32")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"num_epochs": 1}, (1, 5, "all 1 epochs are done")),
        ({"max_num_train_steps": 7}, (1, 7, "all 7 steps are done")),
        ({"gradient_accumulation_steps": 5}, (3, 3, "all 3 epochs are done")),
    ],
)
def test_the_run_goes_by_what_an_override_changes_in_the_config(change: dict[str, Any], expected: Any) -> None:
    class Changes(Trainer):
        def _create_run_config(self, *args: Any, **kwargs: Any) -> TrainerRunConfig:
            return replace(super()._create_run_config(*args, **kwargs), **change)

    result = build(Changes).train(samples(40, 0), 3)
    assert (result.epochs, result.steps, result.stop_reason) == expected


def test_the_run_goes_by_arguments_that_an_override_passes_on() -> None:
    class Doubles(Trainer):
        def _create_run_config(self, per_device_batch_size: int, num_epochs: Any, *args: Any, **kwargs: Any) -> Any:
            return super()._create_run_config(per_device_batch_size, 2 * num_epochs, *args, **kwargs)

    trainer = build(Doubles)
    assert trainer.train(samples(40, 0), 2).epochs == 4
    assert (trainer.run_config.num_epochs, trainer.run_config.max_num_train_steps) == (4, 20)


def test_a_bound_of_gradients_in_the_config_is_kept_to() -> None:
    class Bounds(Trainer):
        def _create_run_config(self, *args: Any, **kwargs: Any) -> TrainerRunConfig:
            return replace(super()._create_run_config(*args, **kwargs), gradient_clip_value=1e-9)

    trainer = build(Bounds)
    before = weights(trainer)
    trainer.train(samples(40, 0), 1)
    assert (weights(trainer) - before).abs().max() < 1e-8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_processes": 4}, r"returned num_processes=4, but it is 1 in this run"),
        ({"mixed_precision": "fp16"}, r"returned mixed_precision='fp16', but it is 'fp32' in this run"),
        ({"seed": 9}, r"returned seed=9, but it is 3 in this run, as the arguments of the trainer or of train\(\) say"),
    ],
)
def test_a_config_that_says_what_the_run_cannot_do_is_refused(change: dict[str, Any], message: str) -> None:
    class Changes(Trainer):
        def _create_run_config(self, *args: Any, **kwargs: Any) -> TrainerRunConfig:
            return replace(super()._create_run_config(*args, **kwargs), **change)

    with pytest.raises(ConfigError, match=message):
        build(Changes).train(samples(16, 0), 1)


def test_a_config_that_is_none_is_refused() -> None:
    class Forgets(Trainer):
        def _create_run_config(self, *args: Any, **kwargs: Any) -> Any:
            super()._create_run_config(*args, **kwargs)

    with pytest.raises(ConfigError, match="_create_run_config returned None; return a TrainerRunConfig"):
        build(Forgets).train(samples(16, 0), 1)


# Loaders ------------------------------------------------------------------------------------------------------------


def test_prepared_loaders_can_be_looked_at_and_replaced_in_an_override_without_arguments() -> None:
    seen = []

    class Prepares(Trainer):
        def _prepare_dataloaders(self) -> None:
            assert isinstance(self._train_dataloader, DataLoader)
            super()._prepare_dataloaders()
            assert self._eval_dataloader is not None
            seen.append((len(self._train_dataloader), len(self._eval_dataloader)))

    assert build(Prepares).train(samples(40, 0), 1, samples(20, 1)).steps == 5
    assert seen == [(5, 3)]


def test_loaders_that_an_override_leaves_or_makes_are_prepared_after_it() -> None:
    class Leaves(Trainer):
        def _prepare_dataloaders(self) -> None:
            pass

    class Makes(Trainer):
        def _prepare_dataloaders(self) -> None:
            self._train_dataloader = DataLoader(samples(12, 0), batch_size=4)  # type: ignore[assignment]

    class Forgets(Trainer):
        def _prepare_dataloaders(self) -> None:
            self._train_dataloader = None

    plain, left, made = build(Trainer), build(Leaves), build(Makes)
    for trainer in (plain, left):
        trainer.train(samples(40, 0), 1, samples(20, 1))
    assert torch.equal(weights(left), weights(plain))
    assert made.train(samples(40, 0), 2).steps == 6
    with pytest.raises(ConfigError, match="_prepare_dataloaders left _train_dataloader as None"):
        build(Forgets).train(samples(40, 0), 1)


# Names that programs use --------------------------------------------------------------------------------------------


def test_the_callbacks_are_found_by_pytorch_accelerateds_name() -> None:
    events = Events()
    trainer = build(Trainer, events)
    assert trainer.callback_handler.callbacks == [events]
    trainer.callback_handler.callbacks.remove(events)
    trainer.train(samples(8, 0), 1)
    assert events.seen == []


def test_a_callback_that_is_added_during_a_run_takes_part_in_it() -> None:
    events = Events()

    class Adds(TrainerCallback):
        def on_train_epoch_end(self, trainer: Trainer, **kwargs: Any) -> None:
            if trainer.run_history.current_epoch == 1:
                trainer.callback_handler.add_callback(events)

    class AddsFirst(TrainerCallback):
        def on_training_run_start(self, trainer: Trainer, **kwargs: Any) -> None:
            trainer.callback_handler.add_callback(events)

    build(Trainer, Adds).train(samples(8, 0), 2)
    epoch = ["on_training_run_epoch_end", "on_train_epoch_start", "on_train_epoch_end", "on_training_run_epoch_end"]
    assert events.seen == [*epoch, "on_training_run_end", "close"]
    events.seen.clear()
    build(Trainer, AddsFirst).train(samples(8, 0), 1)
    assert events.seen[0] == "on_training_run_start"
    assert events.seen.count("on_train_epoch_start") == events.seen.count("close") == 1


def test_callbacks_that_are_removed_during_a_run_see_no_more_of_it_and_are_closed() -> None:
    events = Events()

    class Clears(TrainerCallback):
        def on_train_epoch_end(self, trainer: Trainer, **kwargs: Any) -> None:
            trainer.callback_handler.clear_callbacks()

    build(Trainer, Clears, events).train(samples(8, 0), 2)
    assert events.seen == ["on_training_run_start", "on_train_epoch_start", "on_train_epoch_end", "close"]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_backward_and_clipping_by_the_accelerator_are_those_of_the_trainer(precision: str) -> None:
    class ByTheAccelerator(Trainer):
        def backward_step(self, loss: torch.Tensor) -> None:
            self._accelerator.backward(loss)

        def _clip_gradients(self) -> None:
            self.norms = [*getattr(self, "norms", []), self._accelerator.clip_grad_norm_(self.model.parameters(), 0.1)]
            self._accelerator.clip_grad_value_(self.model.parameters(), 0.1)

    plain, own = build(Trainer, precision=precision), build(ByTheAccelerator, precision=precision)
    plain.train(samples(40, 0), 2, gradient_accumulation_steps=2, clip_norm=0.1)
    own.train(samples(40, 0), 2, gradient_accumulation_steps=2)
    assert len(own.norms) == 6
    torch.testing.assert_close(weights(own), weights(plain))
    with own._accelerator.autocast():
        assert own.model(torch.ones(1, 4)).dtype is (torch.float32 if precision == "fp32" else torch.bfloat16)
    assert own._accelerator.mixed_precision == ("no" if precision == "fp32" else "bf16")


def test_a_member_that_the_accelerator_lacks_is_named_with_what_to_use() -> None:
    facade = build(Trainer)._accelerator
    with pytest.raises(AttributeError, match=r"has no 'prepare'.*use add_stream\(\) for other data"):
        facade.prepare(nn.Linear(1, 1))
    with pytest.raises(AttributeError, match=r"has no 'is_main_proces'.*did you mean 'is_main_process'\?"):
        assert facade.is_main_proces
    assert not hasattr(facade, "__len__")


def test_the_data_of_an_evaluation_says_where_its_batches_are() -> None:
    devices = []

    class Looks(TrainerCallback):
        def on_eval_epoch_start(self, trainer: Any, is_intermediate: bool = False, **kwargs: Any) -> None:
            devices.append((trainer._train_dataloader.device, trainer._eval_dataloader.device))

    build(Trainer, Looks).train(samples(8, 0), 1, samples(8, 1))
    assert devices == [(torch.device("cpu"), torch.device("cpu"))]


def test_the_arguments_of_the_page_come_by_name_and_by_place() -> None:
    trainer = build(Trainer)
    trainer.train(samples(16, 0), 1)
    config = trainer._create_run_config(8, 5, 2, None, None)
    assert (config.num_epochs, config.gradient_accumulation_steps, config.max_num_train_steps) == (5, 2, 5)
