"""A run in its folder: what lies there, going on, and what is refused."""

import json
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn
from torch.utils.data import TensorDataset

from tests.interrupting import (
    CutAt,
    CutError,
    Updates,
    adamw,
    assert_same_bits,
    assert_same_run,
    checkpoint_steps,
    contents,
    make_trainer,
    metric_lines,
    momentum,
    network,
    samples,
    starts_of,
    state_of,
    updates_of,
)
from treadle import TrainerCallback
from treadle.callbacks import LogMetricsCallback, PrintProgressCallback
from treadle.errors import CheckpointError, ConfigError
from treadle.trainer import Trainer


class CountBatches(TrainerCallback):
    """Counts the micro-batches of training."""

    def __init__(self) -> None:
        self.count = 0

    def on_train_step_start(self, trainer: Any, **kwargs: Any) -> None:
        self.count += 1


# What lies in the folder ----------------------------------------------------------------------------------


def test_the_folder_of_a_run_has_these_files_and_no_others(tmp_path: Path) -> None:
    make_trainer(tmp_path / "run", PrintProgressCallback).train(samples(), 2)
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        "config.yaml",
        "manifest.json",
        "metrics.jsonl",
        "log.txt",
        "checkpoints",
        "status.json",
        "execution.json",
        "heartbeat.json",
        ".lock",
    }
    assert {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()} == {
        "last",
        "step_00000003",
        "step_00000006",
    }
    assert {path.name for path in (tmp_path / "run" / "checkpoints" / "step_00000006").iterdir()} == {
        "manifest.json",
        "rank_0.json",
        "rank_0.safetensors",
    }
    assert (tmp_path / "run" / "checkpoints" / "last").read_text().strip() == "step_00000006"


def test_a_trainer_without_a_folder_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_trainer(None).train(samples(), 1)
    assert list(tmp_path.iterdir()) == []


def test_the_folder_may_be_a_string_and_several_levels_deep(tmp_path: Path) -> None:
    result = make_trainer(str(tmp_path / "a" / "b")).train(samples(), 1)  # type: ignore[arg-type]
    assert result.run_dir == tmp_path / "a" / "b"
    assert checkpoint_steps(tmp_path / "a" / "b") == [3]


def test_a_folder_that_cannot_be_made_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    batches = CountBatches()
    with pytest.raises(CheckpointError, match=r"the run folder .*file.* cannot be written: .*[Nn]ot a directory"):
        make_trainer(tmp_path / "file" / "run", batches).train(samples(), 1)
    assert batches.count == 0


def test_the_configuration_is_what_the_run_resolved_its_settings_to(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    trainer.train(samples(), 2, samples(8), gradient_clip_value=1e-05, train_dataloader_kwargs={"drop_last": True})
    config = yaml.safe_load((tmp_path / "config.yaml").read_text())
    trained = {name: config.pop(name) for name in ("model", "optimizers", "scheduler")}
    assert config == trainer.run_config.to_dict()
    optimizer = trained["optimizers"]["optimizer"]
    assert (trained["model"], trained["scheduler"]) == (type(trainer.model).__name__, None)
    assert (optimizer["class"], optimizer["lr"]) == (type(trainer.optimizer).__name__, trainer.optimizer.defaults["lr"])


def test_the_manifest_says_where_and_with_what_the_run_was_made(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    trainer.train(samples(), 1)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["seed"] == 1
    assert manifest["processes"] == 1
    assert manifest["packages"]["torch"] == torch.__version__
    assert manifest["environment"]["threads"] == torch.get_num_threads()
    assert manifest["identity"]["optimizer"]["optimizer"]["class"] == "AdamW"
    assert manifest["identity"]["data"]["length"] == 24
    assert isinstance(manifest["command"], list)
    assert "commit" in manifest["git"]
    assert [start["step"] for start in manifest["starts"]] == [0]


def test_metrics_are_lines_of_json_one_for_each_step_that_reported(tmp_path: Path) -> None:
    class Odd(TrainerCallback):
        def on_train_epoch_end(self, trainer: Any, **kwargs: Any) -> None:
            trainer.run_history.update_metric("odd", float("nan"))
            trainer.run_history.update_metric("large", torch.tensor(float("inf")))

    result = make_trainer(tmp_path, Odd).train(samples(), 2, samples(8), log_every=2)
    rows = metric_lines(tmp_path)
    assert [row["step"] for row in rows] == [2, 3, 4, 6]
    assert [row["epoch"] for row in rows] == [0, 0, 1, 1]
    assert set(rows[0]) == {"step", "epoch", "train_loss"}
    assert set(rows[1]) == {"step", "epoch", "train_loss", "train_loss_epoch", "odd", "large", "eval_loss_epoch"}
    assert (rows[1]["odd"], rows[1]["large"]) == ("nan", "inf")
    assert [rows[1]["eval_loss_epoch"], rows[3]["eval_loss_epoch"]] == result.history["eval_loss_epoch"]


def test_the_log_is_what_the_console_showed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_trainer(tmp_path, PrintProgressCallback, LogMetricsCallback).train(samples(), 2)
    shown = capsys.readouterr().out
    assert "epoch 2/2" in shown
    assert " train " in shown
    assert (tmp_path / "log.txt").read_text() == shown


def test_a_run_that_goes_on_adds_to_its_log(tmp_path: Path) -> None:
    for epochs in (1, 2):
        make_trainer(tmp_path).train(samples(), epochs, resume="auto")
    assert f"resuming from step 3 of {tmp_path}" in (tmp_path / "log.txt").read_text()


# Going on -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exists", [True, False])
def test_with_auto_an_empty_folder_starts_a_new_run(tmp_path: Path, exists: bool) -> None:
    folder = tmp_path if exists else tmp_path / "run"
    result = make_trainer(folder).train(samples(), 2, resume="auto")
    assert (result.epochs, result.steps) == (2, 6)
    whole = make_trainer(None)
    whole.train(samples(), 2)
    again = make_trainer(folder)
    again.train(samples(), 2, resume="auto")
    assert updates_of(again) == (6, 0)
    assert_same_bits(state_of(again), state_of(whole))


def test_a_run_that_died_before_its_first_save_goes_on_from_its_beginning(tmp_path: Path) -> None:
    # Another process, with generators that are elsewhere: what the run began with must come from its folder.
    torch.manual_seed(1)
    with pytest.raises(CutError):
        make_trainer(tmp_path / "cut", CutAt(2), seed=None).train(samples(), 2, log_every=1)
    torch.manual_seed(2)
    resumed = make_trainer(tmp_path / "cut", seed=None)
    resumed.train(samples(), 2, log_every=1, resume="auto")
    assert updates_of(resumed) == (0, 6)
    assert [row["step"] for row in metric_lines(tmp_path / "cut")] == [1, 2, 3, 4, 5, 6]
    torch.manual_seed(1)
    whole = make_trainer(tmp_path / "whole", seed=None)
    whole.train(samples(), 2, log_every=1)
    assert_same_run(resumed, whole)


def test_with_auto_a_run_that_was_cut_goes_on_from_its_last_checkpoint(tmp_path: Path) -> None:
    whole = make_trainer(tmp_path / "whole")
    whole.train(samples(), 4, samples(8))
    with pytest.raises(CutError):
        make_trainer(tmp_path / "cut", CutAt(8)).train(samples(), 4, samples(8))
    assert checkpoint_steps(tmp_path / "cut") == [3, 6]
    batches = CountBatches()
    resumed = make_trainer(tmp_path / "cut", batches)
    resumed.train(samples(), 4, samples(8), resume="auto")
    assert (updates_of(resumed), batches.count) == ((6, 6), 6)
    assert_same_run(resumed, whole)
    assert metric_lines(tmp_path / "cut") == metric_lines(tmp_path / "whole")


def test_the_same_trainer_goes_on_after_an_error(tmp_path: Path) -> None:
    whole = make_trainer(tmp_path / "whole")
    whole.train(samples(), 4)
    trainer = make_trainer(tmp_path / "cut", CutAt(8))
    with pytest.raises(CutError):
        trainer.train(samples(), 4)
    trainer.callback_handler.clear_callbacks()
    trainer.callback_handler.add_callback(Updates())
    trainer.train(samples(), 4, resume="auto")
    assert updates_of(trainer) == (6, 6)
    assert_same_run(trainer, whole)


def test_with_auto_a_finished_run_is_brought_back_and_nothing_is_trained(tmp_path: Path) -> None:
    first = make_trainer(tmp_path)
    first_result = first.train(samples(), 2, samples(8))
    batches = CountBatches()
    again = make_trainer(tmp_path, batches)
    result = again.train(samples(), 2, samples(8), resume="auto")
    assert (updates_of(again), batches.count) == ((6, 0), 0)
    assert_same_run(again, first)
    assert result.stop_reason == "all 2 epochs are done"
    assert result.history == first_result.history


def test_starting_a_finished_run_again_leaves_its_checkpoints_and_metrics_as_they_are(tmp_path: Path) -> None:
    make_trainer(tmp_path).train(samples(), 2)
    before = contents(tmp_path / "checkpoints"), metric_lines(tmp_path)
    make_trainer(tmp_path).train(samples(), 2, resume="auto")
    assert (contents(tmp_path / "checkpoints"), metric_lines(tmp_path)) == before


@pytest.mark.parametrize("cut", [1, 2, 4, 5])
def test_a_run_that_its_limit_cuts_inside_an_epoch_is_saved_there_and_as_its_end(tmp_path: Path, cut: int) -> None:
    make_trainer(tmp_path).train(samples(), max_steps=cut)
    assert checkpoint_steps(tmp_path)[-1] == cut
    manifest = json.loads((tmp_path / "checkpoints" / f"step_{cut:08d}" / "manifest.json").read_text())
    assert (manifest["epoch"], manifest["finished"]) == (cut // 3, True)


def test_a_run_that_a_callback_stopped_goes_on_where_it_stopped(tmp_path: Path) -> None:
    class Stop(TrainerCallback):
        def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
            if trainer.progress.step == 5:
                trainer.request_stop("enough for today")

    whole = make_trainer(tmp_path / "whole")
    whole.train(samples(), 4)
    result = make_trainer(tmp_path / "stopped", Stop).train(samples(), 4)
    assert (result.stop_reason, result.steps) == ("enough for today", 5)
    assert checkpoint_steps(tmp_path / "stopped") == [3, 5]
    resumed = make_trainer(tmp_path / "stopped")
    resumed.train(samples(), 4, resume="auto")
    assert updates_of(resumed) == (5, 7)
    assert_same_run(resumed, whole)


def test_each_start_adds_one_to_the_starts_in_the_manifest(tmp_path: Path) -> None:
    for cut in (4, 8):
        with pytest.raises(CutError):
            make_trainer(tmp_path, CutAt(cut)).train(samples(), 4, resume="auto")
    resumed = make_trainer(tmp_path)
    resumed.train(samples(), 4, resume="auto")
    assert starts_of(tmp_path) == [0, 3, 6]
    assert updates_of(resumed) == (6, 6)


def test_a_manifest_that_was_damaged_begins_a_new_list_of_starts(tmp_path: Path) -> None:
    with pytest.raises(CutError):
        make_trainer(tmp_path, CutAt(4)).train(samples(), 2)
    (tmp_path / "manifest.json").write_text("{")
    make_trainer(tmp_path).train(samples(), 2, resume="auto")
    assert json.loads((tmp_path / "manifest.json").read_text())["starts"][0]["step"] == 3


@pytest.mark.parametrize("ending", ["error", "limit", "stop", "end"])
@pytest.mark.parametrize("persistent", [True, False])
def test_no_worker_outlives_its_run(ending: str, persistent: bool) -> None:
    class Stop(TrainerCallback):
        def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
            if trainer.progress.step == 4:
                trainer.request_stop("enough")

    callbacks = {"error": [CutAt(4)], "stop": [Stop]}.get(ending, [])
    trainer = make_trainer(None, *callbacks)
    options: dict[str, Any] = {"num_workers": 1, "persistent_workers": persistent}
    before = set(multiprocessing.active_children())
    try:
        trainer.train(samples(), 2, max_steps=4 if ending == "limit" else None, train_dataloader_kwargs=options)
    except CutError:
        assert ending == "error"
    # A worker that is left to the garbage collector holds it up for seconds, in whatever thread it runs.
    assert set(multiprocessing.active_children()) <= before


# What is refused ------------------------------------------------------------------------------------------


def test_without_resume_a_folder_that_holds_a_run_is_refused_and_left_alone(tmp_path: Path) -> None:
    make_trainer(tmp_path).train(samples(), 2)
    before = contents(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        make_trainer(tmp_path).train(samples(), 4)
    assert str(caught.value) == (
        f"{tmp_path} already holds a run, at step 6; pass resume='auto' to resume it, or another run_dir"
    )
    assert contents(tmp_path) == before


def test_to_go_on_there_must_be_a_folder() -> None:
    with pytest.raises(ConfigError, match=r"resume='auto'.*run_dir"):
        make_trainer(None).train(samples(), 1, resume="auto")


def test_to_save_there_must_be_a_folder() -> None:
    with pytest.raises(ConfigError, match=r"save_every.*run_dir"):
        make_trainer(None).train(samples(), 1, save_every="1 epoch")


def test_a_folder_in_which_every_checkpoint_is_damaged_says_which(tmp_path: Path) -> None:
    make_trainer(tmp_path).train(samples(), 2)
    for manifest in (tmp_path / "checkpoints").glob("*/manifest.json"):
        manifest.write_text("{")
    before = contents(tmp_path / "checkpoints"), metric_lines(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        make_trainer(tmp_path).train(samples(), 2, resume="auto")
    assert str(caught.value) == (
        f"every checkpoint in {tmp_path / 'checkpoints'} is damaged (steps [3, 6]); restore one, or use another run_dir"
    )
    assert (contents(tmp_path / "checkpoints"), metric_lines(tmp_path)) == before


def narrow() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Dropout(0.3), nn.Linear(4, 1))


def without_normalisation() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.3), nn.Linear(8, 1))


class OtherNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.layer(inputs)
        return outputs


def two_groups(parameters: Any) -> torch.optim.Optimizer:
    first, *rest = parameters
    return torch.optim.AdamW([{"params": [first]}, {"params": rest}], lr=0.05, weight_decay=0.1)


def other_samples() -> TensorDataset:
    inputs, targets = samples().tensors
    return TensorDataset(inputs, targets + 1)


def listed() -> list[Any]:
    return list(samples())


MODEL = {"build": narrow}, {}, r"model\.0\.weight: \(8, 2\) torch.float32 in the checkpoint, \(4, 2\) torch.float32 now"
CLASS = {"build": OtherNetwork}, {}, r"model\.class: Sequential in the checkpoint, OtherNetwork now"
LAYER = {"build": without_normalisation}, {}, r"model\.1\.weight: \(8,\) torch.float32 in the checkpoint, absent now"
KIND = {"optimizer": momentum}, {}, r"optimizer\.optimizer\.class: AdamW in the checkpoint, SGD now"
GROUPS = {"optimizer": two_groups}, {}, r"parameters in each group: \[6\] in the checkpoint, \[1, 5\] now"
LENGTH = {}, {"train_dataset": samples(16)}, r"data\.length: 24 in the checkpoint, 16 now"
ROWS = {}, {"train_dataset": other_samples()}, r"data\.rows: \w{8} in the checkpoint, \w{8} now"
FORM = {}, {"train_dataset": listed()}, r"data\.class: TensorDataset in the checkpoint, list now"
BATCH = {}, {"per_device_batch_size": 4}, r"batch\.global: 8 in the checkpoint, 4 now"
WINDOW = {}, {"gradient_accumulation_steps": 2}, r"batch\.global: 8 in the checkpoint, 16 now"
PRECISION = {"precision": "bf16"}, {}, r"precision: fp32 in the checkpoint, bf16 now"


@pytest.fixture
def cut_run(tmp_path: Path) -> Path:
    """The folder of a run that was cut after its second checkpoint."""
    with pytest.raises(CutError):
        make_trainer(tmp_path, CutAt(8)).train(samples(), 4)
    return tmp_path


@pytest.mark.parametrize(
    ("built", "trained", "message"),
    [MODEL, CLASS, LAYER, KIND, GROUPS, LENGTH, ROWS, FORM, BATCH, WINDOW, PRECISION],
    ids=["model", "class", "layer", "kind", "groups", "length", "rows", "form", "batch", "window", "precision"],
)
def test_another_run_is_refused_with_what_differs(
    cut_run: Path, built: dict[str, Any], trained: dict[str, Any], message: str
) -> None:
    arguments = {"train_dataset": samples(), "num_epochs": 4, "resume": "auto", **trained}
    with pytest.raises(CheckpointError, match=message) as caught:
        make_trainer(cut_run, **built).train(**arguments)
    assert str(caught.value).startswith(f"the run in {cut_run} is another one: ")
    assert str(caught.value).endswith(". Start afresh in another run_dir")


def test_everything_that_differs_is_listed(cut_run: Path) -> None:
    with pytest.raises(CheckpointError, match=r"model\..*; optimizer\..*; data\..*; batch\."):
        make_trainer(cut_run, build=narrow, optimizer=momentum).train(
            samples(16), 4, per_device_batch_size=4, resume="auto"
        )


def test_a_run_that_was_refused_is_left_as_it_was_and_can_still_be_resumed(cut_run: Path, tmp_path: Path) -> None:
    before = contents(cut_run)
    with pytest.raises(CheckpointError, match="is another one"):
        make_trainer(cut_run, build=narrow).train(samples(), 5, log_every=1, resume="auto")
    assert contents(cut_run) == before
    resumed = make_trainer(cut_run)
    resumed.train(samples(), 4, resume="auto")
    assert updates_of(resumed) == (6, 6)
    whole = make_trainer(tmp_path / "whole")
    whole.train(samples(), 4)
    assert_same_run(resumed, whole)


def test_an_optimizer_of_the_parameters_in_another_order_is_refused(cut_run: Path) -> None:
    model = network()
    backwards = adamw(reversed(list(model.parameters())))
    trainer = Trainer(model, nn.MSELoss(), backwards, callbacks=(), seed=1, device="cpu", run_dir=cut_run)
    with pytest.raises(CheckpointError, match=r"0.weight \(8, 2\) in the checkpoint, 3.bias \(1,\) in this trainer"):
        trainer.train(samples(), 4, resume="auto")


def other_decay(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.05, weight_decay=0.2)


def test_an_argument_of_the_optimizer_that_changed_is_not_passed_over_in_silence(
    cut_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refusal = ""
    try:
        make_trainer(cut_run, optimizer=other_decay).train(samples(), 4, resume="auto")
    except CheckpointError as error:
        refusal = str(error)
    assert "weight_decay" in refusal + capsys.readouterr().out


def other_rate(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1)


def test_a_rate_that_changed_is_not_passed_over_in_silence(cut_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refusal = ""
    try:
        make_trainer(cut_run, optimizer=other_rate).train(samples(), 4, resume="auto")
    except CheckpointError as error:
        refusal = str(error)
    assert "0.01" in refusal + capsys.readouterr().out


def test_what_a_schedule_moves_is_no_change_of_the_optimizer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def one_cycle(optimizer: Any) -> Any:
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=12)

    with pytest.raises(CutError):
        make_trainer(tmp_path, CutAt(8), optimizer=momentum).train(samples(), 4, create_scheduler_fn=one_cycle)
    capsys.readouterr()
    make_trainer(tmp_path, optimizer=momentum).train(samples(), 4, create_scheduler_fn=one_cycle, resume="auto")
    assert capsys.readouterr().out == f"resuming from step 6 of {tmp_path}\n"


def test_how_the_optimizer_is_carried_out_may_change(cut_run: Path) -> None:
    def foreach(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=0.05, weight_decay=0.1, foreach=True)

    trainer = make_trainer(cut_run, optimizer=foreach)
    trainer.train(samples(), 4, resume="auto")
    assert updates_of(trainer) == (6, 6)
    assert trainer.optimizer.param_groups[0]["foreach"] is True


def test_another_number_of_threads_is_said_since_it_changes_bits(
    cut_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        make_trainer(cut_run).train(samples(), 4, resume="auto")
    finally:
        torch.set_num_threads(threads)
    said = f"resumed, but not bit for bit: threads: {threads} in the checkpoint, {threads + 1} now"
    assert said in capsys.readouterr().out


def test_something_tracked_that_the_checkpoint_lacks_is_refused_by_name(cut_run: Path) -> None:
    trainer = make_trainer(cut_run).track(teacher=nn.Linear(2, 1))
    with pytest.raises(CheckpointError, match=r"it lacks \['teacher'\] and has \[\] besides"):
        trainer.train(samples(), 4, resume="auto")


def test_a_schedule_that_the_checkpoint_lacks_is_refused(cut_run: Path) -> None:
    def halving(optimizer: Any) -> Any:
        return torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)

    with pytest.raises(CheckpointError, match=r"it lacks \['scheduler'\]"):
        make_trainer(cut_run).train(samples(), 4, create_scheduler_fn=halving, resume="auto")
