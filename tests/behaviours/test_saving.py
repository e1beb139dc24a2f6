"""Checkpoints, and runs that are continued from a saved state."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, RandomSampler, TensorDataset, WeightedRandomSampler

from tests.interrupting import Counter, Updates, updates_of
from treadle.callbacks import SaveTrainingStateCallback
from treadle.errors import CheckpointError
from treadle.trainer import Trainer

SCHEDULE = partial(StepLR, step_size=2, gamma=0.5)


def snapshot(trainer: Any) -> tuple[Any, ...]:
    momentum = [state["momentum_buffer"].tolist() for state in trainer.optimizer.state.values()]
    return (
        trainer.model.weight.tolist(),
        momentum,
        trainer.scheduler.last_epoch,
        trainer.optimizer.param_groups[0]["lr"],
    )


def corrupt(trainer: Any) -> None:
    with torch.no_grad():
        trainer.model.weight.fill_(99.0)
    for state in trainer.optimizer.state.values():
        state["momentum_buffer"].fill_(99.0)
    trainer.scheduler.last_epoch = 99
    trainer.optimizer.param_groups[0]["lr"] = 99.0


@pytest.fixture
def trained(make_trainer: Any, data: TensorDataset) -> Any:
    trainer = make_trainer()
    trainer.train(data, 1, create_scheduler_fn=SCHEDULE)
    return trainer


def test_d30_a_checkpoint_brings_weights_optimizer_scheduler_and_extras_back(trained: Any, tmp_path: Path) -> None:
    before = snapshot(trained)
    trained.save_checkpoint(tmp_path / "best.pt", checkpoint_kwargs={"epoch": 3, "scores": [0.5, 0.25]})
    corrupt(trained)
    state = trained.load_checkpoint(tmp_path / "best.pt")
    assert snapshot(trained) == before
    assert (state["epoch"], state["scores"]) == (3, [0.5, 0.25])
    assert state["model_state_dict"]["weight"].tolist() == before[0]


def test_d30_parts_are_left_as_they_are_if_the_flags_say_so(trained: Any, tmp_path: Path) -> None:
    weights = snapshot(trained)[0]
    trained.save_checkpoint(tmp_path / "all.pt")
    corrupt(trained)
    trained.load_checkpoint(tmp_path / "all.pt", load_optimizer=False, load_scheduler=False)
    momentum = [[[99.0, 99.0]], [99.0]]
    assert snapshot(trained) == (weights, momentum, 99, 99.0)


def test_d30_parts_are_not_written_if_the_flags_say_so(trained: Any, tmp_path: Path) -> None:
    trained.save_checkpoint(tmp_path / "weights.pt", save_optimizer=False, save_scheduler=False)
    weights = snapshot(trained)[0]
    corrupt(trained)
    state = trained.load_checkpoint(tmp_path / "weights.pt")
    assert set(state) == {"model_state_dict"}
    assert snapshot(trained)[0] == weights
    assert trained.scheduler.last_epoch == 99


def test_d30_a_checkpoint_with_a_scheduler_says_what_to_do_in_a_trainer_without_one(
    trained: Any, make_trainer: Any, tmp_path: Path
) -> None:
    trained.save_checkpoint(tmp_path / "all.pt")
    fresh = make_trainer()
    with pytest.raises(CheckpointError, match=r"holds a scheduler.*pass load_scheduler=False"):
        fresh.load_checkpoint(tmp_path / "all.pt")
    fresh.load_checkpoint(tmp_path / "all.pt", load_scheduler=False)
    assert torch.equal(fresh.model.weight, trained.model.weight)


def test_d30_a_checkpoint_with_an_optimizer_says_what_to_do_in_a_trainer_without_one(
    trained: Any, tmp_path: Path
) -> None:
    trained.save_checkpoint(tmp_path / "all.pt", save_scheduler=False)
    fresh = Trainer(nn.Linear(2, 1), nn.MSELoss(), None, callbacks=(), device="cpu")
    with pytest.raises(CheckpointError, match=r"holds optimizers \['optimizer'\].*pass load_optimizer=False"):
        fresh.load_checkpoint(tmp_path / "all.pt")
    fresh.load_checkpoint(tmp_path / "all.pt", load_optimizer=False)
    assert torch.equal(fresh.model.weight, trained.model.weight)


def test_d30_a_checkpoint_of_another_model_names_what_does_not_fit(
    trained: Any, make_trainer: Any, tmp_path: Path
) -> None:
    trained.save_checkpoint(tmp_path / "all.pt")
    with pytest.raises(CheckpointError, match=r"all.pt does not fit the model: .*\s*size mismatch for weight"):
        make_trainer(model=nn.Linear(3, 1)).load_checkpoint(tmp_path / "all.pt", load_scheduler=False)


def test_d31_a_compiled_model_is_saved_under_the_names_of_the_plain_one(make_trainer: Any, tmp_path: Path) -> None:
    trainer = make_trainer()
    trainer.model = torch.compile(trainer.model, backend="eager")
    trainer.save_checkpoint(tmp_path / "compiled.pt")
    weight = trainer.get_model(keep_torch_compile=False).weight.detach().clone()
    plain = make_trainer(model=nn.Linear(2, 1))
    with torch.no_grad():
        plain.model.weight.fill_(99.0)
    state = plain.load_checkpoint(tmp_path / "compiled.pt")
    assert set(state["model_state_dict"]) == {"weight", "bias"}
    assert torch.equal(plain.model.weight, weight)
    plain.save_checkpoint(tmp_path / "plain.pt")
    with torch.no_grad():
        trainer.get_model(keep_torch_compile=False).weight.fill_(99.0)
    trainer.load_checkpoint(tmp_path / "plain.pt")
    assert torch.equal(trainer.get_model(keep_torch_compile=False).weight, weight)


def model_with_dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.5), nn.Linear(4, 1))


def test_d36_a_run_continued_from_its_end_has_the_losses_of_an_uninterrupted_one(
    make_trainer: Any, data: TensorDataset, tmp_path: Path
) -> None:
    whole = make_trainer(build=model_with_dropout).train(data, 4, create_scheduler_fn=SCHEDULE)
    first = make_trainer(build=model_with_dropout)
    first.train(data, 2, create_scheduler_fn=SCHEDULE)
    first.save_training_state(tmp_path / "half", checkpoint_kwargs={"note": "half way"})
    second = make_trainer(Updates(), build=model_with_dropout)
    rest = second.train(data, 4, create_scheduler_fn=SCHEDULE, resume_from=tmp_path / "half")
    assert updates_of(second) == (6, 6)
    assert rest.history == whole.history
    assert second.load_training_state(tmp_path / "half") == {"note": "half way"}


def states(folder: Path) -> SaveTrainingStateCallback:
    return SaveTrainingStateCallback(folder, save_every_n_epochs=1)


def test_a40_a_continued_run_neither_repeats_an_epoch_nor_adds_one(
    make_trainer: Any, data: TensorDataset, tmp_path: Path
) -> None:
    trained_epochs: list[int] = []

    class Watch(SaveTrainingStateCallback):
        def on_train_epoch_end(self, trainer: Any, **kwargs: Any) -> None:
            trained_epochs.append(trainer.run_history.current_epoch)

    make_trainer(states(tmp_path)).train(data, 2)
    result = make_trainer(Watch(tmp_path / "more")).train(data, 4, resume_from=tmp_path / "epoch_2")
    assert trained_epochs == [3, 4]
    assert (result.epochs, result.steps, len(result.history["train_loss_epoch"])) == (4, 12, 4)


def test_a40_a_run_that_was_finished_already_does_nothing_when_continued(
    make_trainer: Any, data: TensorDataset, tmp_path: Path
) -> None:
    first = make_trainer(states(tmp_path))
    first.train(data, 2)
    again = make_trainer(states(tmp_path))
    result = again.train(data, 2, resume_from=tmp_path / "final")
    assert (result.epochs, result.steps) == (2, 6)
    assert torch.equal(again.model.weight, first.model.weight)


@pytest.mark.parametrize("epoch", [1, 2, 3])
def test_a41_a_run_with_a_schedule_continues_from_any_of_its_states(
    make_trainer: Any, data: TensorDataset, tmp_path: Path, epoch: int
) -> None:
    whole = make_trainer(states(tmp_path))
    whole.train(data, 4, create_scheduler_fn=SCHEDULE)
    resumed = make_trainer(states(tmp_path / "more"), Updates())
    resumed.train(data, 4, create_scheduler_fn=SCHEDULE, resume_from=tmp_path / f"epoch_{epoch}")
    assert updates_of(resumed) == (3 * epoch, 12 - 3 * epoch)
    assert snapshot(resumed) == snapshot(whole)


DATA_FORMS: dict[str, Callable[[TensorDataset], Any]] = {
    "data set": lambda data: data,
    "DataLoader(shuffle=True)": lambda data: DataLoader(data, batch_size=8, shuffle=True),
    "DataLoader with a generator": lambda data: DataLoader(
        data, batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(2)
    ),
    "DataLoader with a sampler": lambda data: DataLoader(
        data, batch_size=8, sampler=WeightedRandomSampler([1.0] * 24, num_samples=24)
    ),
    "DataLoader with a sampler with a generator": lambda data: DataLoader(
        data, batch_size=8, sampler=RandomSampler(data, generator=torch.Generator().manual_seed(2))
    ),
    "iterable": lambda data: NoisyBatches(data),
}


class NoisyBatches:
    """Batches of unknown number, each with noise from torch's own generator."""

    def __init__(self, data: TensorDataset) -> None:
        self.batches = list(zip(data.tensors[0].split(8), data.tensors[1].split(8), strict=True))

    def __iter__(self) -> Iterator[Any]:
        for inputs, targets in self.batches:
            yield inputs + torch.rand(()), targets


@pytest.mark.parametrize("form", list(DATA_FORMS))
def test_a_run_is_continued_exactly_from_any_step_whatever_its_data(
    make_trainer: Any, data: TensorDataset, tmp_path: Path, form: str
) -> None:
    def run(folder: Path, **kwargs: Any) -> tuple[Any, Any]:
        saving = SaveTrainingStateCallback(folder, save_every_n_steps=1)
        trainer = make_trainer(saving, Updates(), build=model_with_dropout)
        return trainer, trainer.train(DATA_FORMS[form](data), 2, gradient_accumulation_steps=2, **kwargs)

    whole, expected = run(tmp_path / "whole")
    for step in range(1, expected.steps):
        torch.manual_seed(100 + step)
        resumed, result = run(tmp_path / "rest", resume_from=tmp_path / "whole" / f"step_{step}")
        assert result.history == expected.history, f"continued from step {step}"
        assert updates_of(resumed) == (step, expected.steps - step)
        for one, other in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
            assert torch.equal(one, other)


class CountsBatches(Trainer):
    """Tracks an object of its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.counter = Counter()
        self.track(counter=self.counter)

    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        self.counter.count += 1
        return super().calculate_train_batch_loss(batch)


def test_what_a_subclass_tracks_is_saved_and_restored(make_trainer: Any, data: TensorDataset, tmp_path: Path) -> None:
    saving = SaveTrainingStateCallback(tmp_path, save_every_n_steps=4)
    make_trainer(saving, kind=CountsBatches).train(data, 2)
    resumed = make_trainer(SaveTrainingStateCallback(tmp_path / "more"), kind=CountsBatches)
    resumed.train(data, 2, resume_from=tmp_path / "step_4")
    assert resumed.counter.count == 6


class TracksAtStart(Trainer):
    """Adds data and an object of its own when everything is ready, as `add_stream` says one may."""

    def training_run_start(self) -> None:
        self.add_stream("other", self.train_dataset, batch_size=4)
        self.counter = Counter()
        self.track(counter=self.counter)

    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        self.counter.count += 1
        if self.streams["other"].has_next():
            self.streams["other"].window(1)
        return super().calculate_train_batch_loss(batch)


def test_what_is_tracked_when_the_run_starts_is_restored_as_well(
    make_trainer: Any, data: TensorDataset, tmp_path: Path
) -> None:
    saving = SaveTrainingStateCallback(tmp_path, save_every_n_steps=4)
    make_trainer(saving, kind=TracksAtStart).train(data, 2)
    resumed = make_trainer(SaveTrainingStateCallback(tmp_path / "more"), kind=TracksAtStart)
    resumed.train(data, 2, resume_from=tmp_path / "step_4")
    assert resumed.counter.count == 6
    assert resumed.streams["other"].drawn == 3


def test_resuming_from_a_folder_without_a_state_names_it(
    make_trainer: Any, data: TensorDataset, tmp_path: Path
) -> None:
    told = rf"there is no training state \(state.safetensors\) in {tmp_path}, which is a folder; pass the folder that"
    with pytest.raises(CheckpointError, match=told):
        make_trainer().train(data, 2, resume_from=tmp_path)


def test_resuming_with_another_set_of_parts_names_them(make_trainer: Any, data: TensorDataset, tmp_path: Path) -> None:
    trainer = make_trainer()
    trainer.train(data, 1)
    trainer.save_training_state(tmp_path / "state")
    with pytest.raises(CheckpointError, match=r"it lacks \['scheduler'\] and has \[\] besides"):
        make_trainer().train(data, 2, create_scheduler_fn=SCHEDULE, resume_from=tmp_path / "state")
    with pytest.raises(CheckpointError, match="training state does not fit the model"):
        make_trainer(build=model_with_dropout).train(data, 2, resume_from=tmp_path / "state")
