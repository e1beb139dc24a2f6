from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import TensorDataset

from tests.interrupting import Updates, updates_of
from treadle.callbacks import SaveTrainingStateCallback, StepBasedEvaluationCallback
from treadle.errors import ConfigError


def folders(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


def test_states_are_saved_by_epochs_by_steps_and_at_the_end(
    make_trainer: Any, data: TensorDataset, tmp_path: Path
) -> None:
    saving = SaveTrainingStateCallback(tmp_path, save_every_n_epochs=2, save_every_n_steps=3)
    make_trainer(saving).train(data, num_epochs=2)
    assert folders(tmp_path) == ["epoch_2", "final", "step_3", "step_6"]


def test_by_default_only_the_end_is_saved_and_that_can_be_left_out(
    make_trainer: Any, data: TensorDataset, tmp_path: Path
) -> None:
    make_trainer(SaveTrainingStateCallback(tmp_path / "a")).train(data, num_epochs=1)
    assert folders(tmp_path / "a") == ["final"]
    make_trainer(SaveTrainingStateCallback(tmp_path / "b", save_at_end=False)).train(data, num_epochs=1)
    assert not (tmp_path / "b").exists()


def test_the_oldest_go_first_and_the_final_one_is_neither_counted_nor_removed(
    make_trainer: Any, data: TensorDataset, tmp_path: Path
) -> None:
    (tmp_path / "final").mkdir()
    (tmp_path / "epoch_99").mkdir()  # of another run, and none of ours to remove
    saving = SaveTrainingStateCallback(tmp_path, save_every_n_epochs=1, save_every_n_steps=3, max_checkpoints=2)
    make_trainer(saving).train(data, num_epochs=3)
    assert folders(tmp_path) == ["epoch_3", "epoch_99", "final", "step_12"]


def test_processes_other_than_the_main_one_remove_nothing(
    make_trainer: Any, data: TensorDataset, tmp_path: Path
) -> None:
    trainer = make_trainer(SaveTrainingStateCallback(tmp_path, save_every_n_epochs=1, max_checkpoints=1))
    trainer.processes.rank = 1
    trainer.train(data, num_epochs=2)
    assert folders(tmp_path) == ["epoch_1", "epoch_2", "final"]


@pytest.mark.parametrize("folder", ["step_2", "step_3", "step_4", "epoch_1", "step_6", "step_8", "epoch_2"])
def test_a_resumed_run_ends_as_the_whole_one(
    make_trainer: Any, data: TensorDataset, tmp_path: Path, folder: str
) -> None:
    def run(**kwargs: Any) -> tuple[Any, Any]:
        saving = SaveTrainingStateCallback(tmp_path / "states", save_every_n_epochs=1, save_every_n_steps=1)
        trainer = make_trainer(saving, StepBasedEvaluationCallback(3), Updates())
        schedule = partial(StepLR, step_size=3, gamma=0.5)
        result = trainer.train(data, num_epochs=3, eval_dataset=data, create_scheduler_fn=schedule, **kwargs)
        return trainer, result

    whole, expected = run()
    resumed, result = run(resume_from=tmp_path / "states" / folder)
    unit, number = folder.split("_")
    began = int(number) * (4 if unit == "epoch" else 1)
    assert updates_of(resumed) == (began, 12 - began)
    assert torch.equal(resumed.model.weight, whole.model.weight)
    assert result.history == expected.history
    assert (result.steps, result.epochs) == (12, 3)


def test_a_finished_run_can_be_continued_from_its_final_state(
    make_trainer: Any, data: TensorDataset, tmp_path: Path
) -> None:
    whole = make_trainer()
    whole.train(data, num_epochs=3)
    make_trainer(SaveTrainingStateCallback(tmp_path)).train(data, num_epochs=2)
    resumed = make_trainer(SaveTrainingStateCallback(tmp_path), Updates())
    assert resumed.train(data, num_epochs=3, resume_from=tmp_path / "final").steps == 12
    assert updates_of(resumed) == (8, 4)
    assert torch.equal(resumed.model.weight, whole.model.weight)


def test_a_resumed_run_removes_the_old_states_of_the_run_it_continues(
    make_trainer: Any, data: TensorDataset, tmp_path: Path
) -> None:
    def saving() -> SaveTrainingStateCallback:
        return SaveTrainingStateCallback(tmp_path, save_every_n_epochs=1, max_checkpoints=2)

    make_trainer(saving()).train(data, num_epochs=2)
    make_trainer(saving()).train(data, num_epochs=4, resume_from=tmp_path / "epoch_2")
    assert folders(tmp_path) == ["epoch_3", "epoch_4", "final"]


@pytest.mark.parametrize("name", ["save_every_n_epochs", "save_every_n_steps", "max_checkpoints"])
def test_a_number_below_one_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"SaveTrainingStateCallback: {name}=0 must be at least 1"):
        SaveTrainingStateCallback(**{name: 0})
