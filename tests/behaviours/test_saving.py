"""Checkpoints, and runs that are continued from a saved state."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import TensorDataset

from treadle.callbacks import SaveTrainingStateCallback
from treadle.errors import CheckpointError

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
    from treadle.trainer import Trainer

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
    second = make_trainer(build=model_with_dropout)
    rest = second.train(data, 4, create_scheduler_fn=SCHEDULE, resume_from=tmp_path / "half")
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
    resumed = make_trainer(states(tmp_path / "more"))
    resumed.train(data, 4, create_scheduler_fn=SCHEDULE, resume_from=tmp_path / f"epoch_{epoch}")
    assert snapshot(resumed) == snapshot(whole)
