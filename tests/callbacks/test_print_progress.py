from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import TensorDataset

from treadle.callback import TrainerCallback
from treadle.callbacks import PrintProgressCallback
from treadle.callbacks.print_progress import settings_table
from treadle.errors import StopTrainingError


class Stopping(TrainerCallback):
    def on_train_epoch_end(self, trainer: Any, **kwargs: Any) -> None:
        raise StopTrainingError("enough of it")


class Failing(TrainerCallback):
    def on_train_epoch_end(self, trainer: Any, **kwargs: Any) -> None:
        raise RuntimeError("broken")


def test_a_run_is_told_from_its_settings_to_its_end(
    make_trainer: Any, data: TensorDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    make_trainer(PrintProgressCallback).train(data, num_epochs=2, per_device_batch_size=16, clip_norm=1.5)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Starting training run"
    assert lines[-5:] == [
        "Starting epoch 1/2",
        "Finished epoch 1/2",
        "Starting epoch 2/2",
        "Finished epoch 2/2",
        "Finished training run after 2 epochs and 4 steps",
    ]
    settings = {line.split()[0]: line.split()[1] for line in lines[1:-5]}
    assert settings["num_epochs"] == "2"
    assert settings["train_per_device_batch_size"] == "16"
    assert settings["clip_norm"] == "1.5"
    assert "gradient_clip_value" not in settings
    assert max(map(len, lines)) <= 80


def test_a_stopped_run_says_so_with_the_reason_once_and_names_its_folder(
    make_trainer: Any, data: TensorDataset, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    make_trainer(PrintProgressCallback, Stopping, run_dir=tmp_path).train(data, num_epochs=2)
    printed = capsys.readouterr().out
    assert printed.count("enough of it") == 1
    assert printed.endswith(f"Stopped training run after 0 epochs and 4 steps\nThe run is in {tmp_path}\n")


def test_a_second_run_does_not_call_itself_stopped(
    make_trainer: Any, data: TensorDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = make_trainer(PrintProgressCallback, Stopping)
    trainer.train(data, num_epochs=1)
    trainer.callback_handler.callback_list.pop()
    trainer.train(data, num_epochs=1)
    assert capsys.readouterr().out.endswith("Finished training run after 1 epoch and 4 steps\n")


def test_a_run_that_dies_says_of_what(
    make_trainer: Any, data: TensorDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RuntimeError, match="broken"):
        make_trainer(PrintProgressCallback, Failing).train(data, num_epochs=1)
    assert capsys.readouterr().out.endswith("The run ended with RuntimeError after 4 steps\n")


def test_an_evaluation_by_itself_is_told(
    make_trainer: Any, data: TensorDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    make_trainer(PrintProgressCallback).evaluate(data)
    assert capsys.readouterr().out == "Starting evaluation run\nFinished evaluation run\n"


def test_long_settings_are_wrapped_into_their_column() -> None:
    table = settings_table({"train_dl_kwargs": {f"argument_{n}": n for n in range(8)}, "device": "cpu"})
    lines = table.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("  train_dl_kwargs  argument_0=0, argument_1=1,")
    assert lines[1].startswith(" " * 19 + "argument_")
    assert lines[-1] == "  device           cpu"


def test_an_epoch_that_the_limit_of_steps_ends_is_not_called_finished(
    make_trainer: Any, data: TensorDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    make_trainer(PrintProgressCallback).train(data, num_epochs=3, max_steps=6)
    assert capsys.readouterr().out.splitlines()[-5:] == [
        "Starting epoch 1/3",
        "Finished epoch 1/3",
        "Starting epoch 2/3",
        "Left epoch 2/3 at step 6, the last one",
        "Finished training run after 1 epoch and 6 steps",
    ]


def test_a_limit_of_steps_at_the_end_of_an_epoch_finishes_it(
    make_trainer: Any, data: TensorDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    make_trainer(PrintProgressCallback).train(data, num_epochs=3, max_steps=8)
    assert capsys.readouterr().out.endswith("Finished epoch 2/3\nFinished training run after 2 epochs and 8 steps\n")


def test_epochs_are_counted_by_run_where_the_history_goes_on(
    make_trainer: Any, data: TensorDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = make_trainer(PrintProgressCallback)
    trainer.train(data, num_epochs=2)
    capsys.readouterr()
    trainer.train(data, num_epochs=2, reset_run_history=False)
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("Starting epoch")] == ["Starting epoch 1/2", "Starting epoch 2/2"]
    assert len(trainer.run_history.get_metric_values("train_loss_epoch")) == 4
