import re
import signal
from pathlib import Path
from typing import Any

import pytest
from torch import nn
from torch.utils.data import TensorDataset

from treadle.callback import TrainerCallback
from treadle.callbacks import EarlyStoppingCallback, PrintProgressCallback
from treadle.callbacks.print_progress import settings_table
from treadle.checkpoint import Policy
from treadle.errors import StopTrainingError
from treadle.result import BestMetric


class Stopping(TrainerCallback):
    def on_train_epoch_end(self, trainer: Any, **kwargs: Any) -> None:
        raise StopTrainingError("enough of it")


class Failing(TrainerCallback):
    def on_train_epoch_end(self, trainer: Any, **kwargs: Any) -> None:
        raise RuntimeError("broken")


CLOCK = re.compile(r"(?<=  )\d+\.\ds|\d+\.\ds(?=;|$)", re.MULTILINE)


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return what was printed, the times as TIME."""
    return CLOCK.sub("TIME", capsys.readouterr().out).splitlines()


def epochs_in(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("epoch")]


def test_a_run_is_told_by_a_head_a_line_for_each_epoch_and_its_end(
    make_trainer: Any, data: TensorDataset, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trainer = make_trainer(PrintProgressCallback, run_dir=tmp_path)
    result = trainer.train(data, num_epochs=2, per_device_batch_size=16, eval_dataset=data)
    train, evaluated = result.history["train_loss_epoch"], result.history["eval_loss_epoch"]
    assert evaluated[0] > 1 > evaluated[1]
    assert lines_of(capsys) == [
        "model   Linear, 3 parameters",
        "data    32 samples to train on, 32 samples to evaluate on, batches of 16",
        "train   2 epochs of 2 steps",
        "run on  cpu, eager, fp32",
        f"folder  {tmp_path}",
        f"epoch 1/2  TIME  train {train[0]:#.4g}  eval {evaluated[0]:#.4g} *best",
        f"epoch 2/2  TIME  train {train[1]:#.4g}  eval {evaluated[1]:.4f} *best",
        f"finished after 2 epochs, 4 steps, TIME; best eval {evaluated[1]:.4f}; folder {tmp_path}",
    ]


def test_the_head_has_at_most_six_lines_whatever_a_run_is_asked_for(
    make_trainer: Any, data: TensorDataset, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    model = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 1))
    model[0].requires_grad_(False)
    model.append(model[1])  # the same weights twice are counted once
    model[2] = nn.Identity()
    trainer = make_trainer(PrintProgressCallback, model=model, run_dir=tmp_path, execution="auto", precision="bf16")
    trainer.train(data, num_epochs=3, max_steps=5, gradient_accumulation_steps=2, clip_norm=1.0, resume="auto")
    head = lines_of(capsys)[:6]
    assert head[:4] == [
        "model   Sequential, 5 parameters trained, 12 frozen",
        "data    32 samples to train on, batches of 16 (2 micro-batches x 8)",
        "train   3 epochs of 2 steps, at most 5 steps",
        "run on  cpu, eager, bf16",
    ]
    assert head[4] == f"folder  {tmp_path}"
    assert head[5].startswith("epoch 1/3")


def test_shared_weights_are_counted_once_in_the_head(
    make_trainer: Any, data: TensorDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    layer = nn.Linear(2, 2)
    make_trainer(PrintProgressCallback, model=nn.Sequential(layer, layer, nn.Linear(2, 1))).train(data, num_epochs=1)
    assert lines_of(capsys)[0] == "model   Sequential, 9 parameters"


def test_batches_are_counted_where_samples_have_no_number(
    make_trainer: Any, data: TensorDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    ready = [tuple(part[place : place + 8] for part in data.tensors) for place in range(0, 32, 8)]
    make_trainer(PrintProgressCallback).train(iter(ready), max_steps=3)
    assert [line for line in lines_of(capsys) if line.startswith(("data", "train"))] == ["train   3 steps"]


def test_a_resumed_run_says_where_it_goes_on(
    make_trainer: Any, data: TensorDataset, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    make_trainer(run_dir=tmp_path).train(data, num_epochs=1)
    make_trainer(PrintProgressCallback, run_dir=tmp_path).train(data, num_epochs=2, resume="auto")
    lines = lines_of(capsys)
    assert lines[0] == f"resuming from step 4 of {tmp_path}"
    assert lines[1].startswith("model")
    assert [line[:9] for line in epochs_in(lines)] == ["epoch 2/2"]


def test_verbose_prints_the_settings_that_a_run_was_given_below_the_head(
    make_trainer: Any, data: TensorDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = make_trainer(PrintProgressCallback(verbose=True))
    trainer.train(data, num_epochs=2, per_device_batch_size=16, clip_norm=1.5)
    lines = lines_of(capsys)
    settings = {line.split()[0]: line.split()[1] for line in lines if line.startswith("  ")}
    assert settings["num_epochs"] == "2"
    assert settings["train_per_device_batch_size"] == "16"
    assert settings["clip_norm"] == "1.5"
    assert "gradient_clip_value" not in settings
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("by", ["callback", "policy"])
def test_best_is_marked_by_the_metric_that_the_run_is_judged_by(
    make_trainer: Any, data: TensorDataset, capsys: pytest.CaptureFixture[str], tmp_path: Path, by: str
) -> None:
    watching = [EarlyStoppingCallback(9, watch_metric="score", greater_is_better=True)] if by == "callback" else []
    kept = {"checkpoints": Policy(best="score", greater_is_better=True), "run_dir": tmp_path} if by == "policy" else {}
    trainer = make_trainer(PrintProgressCallback, *watching, scores=[0.5, 0.75, 0.75, 0.25], **kept)
    result = trainer.train(data, num_epochs=4, eval_dataset=data)
    lines = lines_of(capsys)
    assert [line.endswith(" *best") for line in epochs_in(lines)] == [True, True, False, False]
    assert epochs_in(lines)[1].endswith("score 0.7500 *best")
    assert "; best score 0.7500" in lines[-1]
    assert result.best == BestMetric("score", 0.75, 1)


def test_a_training_without_evaluation_marks_no_epoch_as_best(
    make_trainer: Any, data: TensorDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    make_trainer(PrintProgressCallback).train(data, num_epochs=2)
    lines = lines_of(capsys)
    assert not [line for line in lines if "best" in line]
    assert lines[-1] == "finished after 2 epochs, 8 steps, TIME"


def test_an_evaluation_within_an_epoch_has_a_line_with_its_step(
    make_trainer: Any, data: TensorDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = make_trainer(PrintProgressCallback)
    result = trainer.train(data, num_epochs=1, eval_dataset=data, eval_every=2)
    first, second = (f"eval {value:#.4g}" for value in result.history["eval_loss_epoch"])
    lines = lines_of(capsys)[4:-1]
    assert lines[:2] == [f"step 2  {first} *best", f"step 4  {second} *best"]
    assert lines[2].startswith("epoch 1/1  TIME  train ")


def test_what_is_recorded_after_the_line_of_an_epoch_is_printed_before_the_next(
    make_trainer: Any, data: TensorDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    class Late(TrainerCallback):
        def on_training_run_epoch_end(self, trainer: Any, **kwargs: Any) -> None:
            trainer.run_history.update_metric("late", trainer.progress.epoch)

    make_trainer(PrintProgressCallback, Late).train(data, num_epochs=2)
    lines = lines_of(capsys)[4:]
    assert [line[:9].strip() for line in lines] == ["epoch 1/2", "late 0", "epoch 2/2", "late 1", "finished"]


def test_a_stopped_run_says_so_with_the_reason_once_and_names_its_folder(
    make_trainer: Any, data: TensorDataset, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    make_trainer(PrintProgressCallback, Stopping, run_dir=tmp_path).train(data, num_epochs=2)
    lines = lines_of(capsys)
    assert lines[-3] == "enough of it"
    assert lines[-2].startswith("  train ")
    assert lines[-1] == f"stopped after 0 epochs, 4 steps, TIME; folder {tmp_path}"


def test_a_second_run_does_not_call_itself_stopped(
    make_trainer: Any, data: TensorDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = make_trainer(PrintProgressCallback, Stopping)
    trainer.train(data, num_epochs=1)
    trainer.callback_handler.callback_list.pop()
    trainer.train(data, num_epochs=1)
    assert lines_of(capsys)[-1] == "finished after 1 epoch, 4 steps, TIME"


def test_a_run_that_dies_says_of_what_and_names_its_folder(
    make_trainer: Any, data: TensorDataset, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(RuntimeError, match="broken"):
        make_trainer(PrintProgressCallback, Failing, run_dir=tmp_path).train(data, num_epochs=1)
    assert lines_of(capsys)[-1] == f"the run ended with RuntimeError after 4 steps; folder {tmp_path}"


def test_a_run_that_was_asked_to_leave_says_so_once(
    make_trainer: Any, data: TensorDataset, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    class Interrupting(TrainerCallback):
        def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
            if trainer.progress.step == 2:
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt, match="saved step 2"):
        make_trainer(PrintProgressCallback, Interrupting, run_dir=tmp_path).train(data, num_epochs=1)
    said = capsys.readouterr().out.splitlines()
    assert said[-1].startswith("saved step 2")


def test_an_evaluation_by_itself_is_one_line(
    make_trainer: Any, data: TensorDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    found = make_trainer(PrintProgressCallback, scores=[0.5]).evaluate(data)
    assert lines_of(capsys) == [f"evaluation  TIME  eval {found['evaluation_loss']:#.4g}  score 0.5000"]


def test_an_evaluation_within_a_run_takes_nothing_from_the_line_of_the_epoch(
    make_trainer: Any, data: TensorDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    class Looking(TrainerCallback):
        def on_train_epoch_end(self, trainer: Any, **kwargs: Any) -> None:
            trainer.evaluate(data)

    make_trainer(PrintProgressCallback, Looking).train(data, num_epochs=1)
    lines = lines_of(capsys)[4:]
    assert lines[0].startswith("evaluation  TIME  eval ")
    assert re.fullmatch(r"epoch 1/1  TIME  train \S+", lines[1])


def test_long_settings_are_wrapped_into_their_column() -> None:
    table = settings_table({"train_dl_kwargs": {f"argument_{n}": n for n in range(8)}, "device": "cpu"})
    lines = table.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("  train_dl_kwargs  argument_0=0, argument_1=1,")
    assert lines[1].startswith(" " * 19 + "argument_")
    assert lines[-1] == "  device           cpu"


def test_an_epoch_that_the_limit_of_steps_ends_says_where_it_was_left(
    make_trainer: Any, data: TensorDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    make_trainer(PrintProgressCallback).train(data, num_epochs=3, max_steps=6)
    lines = lines_of(capsys)
    first, second = epochs_in(lines)
    assert first.startswith("epoch 1/3  TIME  train ")
    assert "left" not in first
    assert second.startswith("epoch 2/3  TIME  train ")
    assert second.endswith("  left at step 6")
    assert lines[-1] == "finished after 1 epoch, 6 steps, TIME"


def test_a_limit_of_steps_at_the_end_of_an_epoch_finishes_it(
    make_trainer: Any, data: TensorDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    make_trainer(PrintProgressCallback).train(data, num_epochs=3, max_steps=8)
    lines = lines_of(capsys)
    assert "left" not in lines[-2]
    assert lines[-1] == "finished after 2 epochs, 8 steps, TIME"


def test_epochs_are_counted_by_run_where_the_history_goes_on(
    make_trainer: Any, data: TensorDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = make_trainer(PrintProgressCallback)
    trainer.train(data, num_epochs=2)
    capsys.readouterr()
    trainer.train(data, num_epochs=2, reset_run_history=False)
    assert [line[:9] for line in epochs_in(lines_of(capsys))] == ["epoch 1/2", "epoch 2/2"]
    assert len(trainer.run_history.get_metric_values("train_loss_epoch")) == 4
