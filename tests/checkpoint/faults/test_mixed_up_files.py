"""What a trainer saves, loaded by the wrong verb or at the wrong time, is told in our words."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.interrupting import assert_same_run, make_trainer, samples, updates_of
from treadle.checkpoint import write_file
from treadle.errors import CheckpointError


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, a training state that was saved after it, a checkpoint of weights and a plain file."""
    folder = tmp_path_factory.mktemp("saved")
    trainer = make_trainer(folder / "run")
    trainer.train(samples(), 2)
    trainer.save_training_state(folder / "state")
    trainer.save_checkpoint(folder / "weights.safetensors")
    (folder / "mixed").mkdir()
    trainer.save_checkpoint(folder / "mixed" / "state.safetensors")
    save_file({"weight": torch.zeros(3)}, folder / "plain.safetensors")
    (folder / "empty").mkdir()
    return folder


@pytest.mark.parametrize("run_dir", [None, "run"])
def test_a_training_state_may_be_saved_after_training_and_gone_on_from(tmp_path: Path, run_dir: str | None) -> None:
    first = make_trainer(None if run_dir is None else tmp_path / run_dir)
    first.train(samples(), 2)
    first.save_training_state(tmp_path / "state")
    resumed = make_trainer(None)
    resumed.train(samples(), 4, resume_from=tmp_path / "state")
    whole = make_trainer(None)
    whole.train(samples(), 4)
    assert resumed.progress.step == 12
    assert updates_of(resumed) == (6, 6)
    assert_same_run(resumed, whole)


LOADED = [
    ("state", "load_checkpoint takes a file, and .*state is a training state; pass it to train"),
    (
        "state/state.safetensors",
        r"is a training state, not a checkpoint of weights; pass its folder, .*state, to ",
    ),
    (
        "run",
        "load_checkpoint takes a file, and .*run is the folder of a run; to resume that run, build ",
    ),
    ("run/checkpoints/step_00000006", "is a checkpoint of the run in .*run; to resume that run"),
    ("run/checkpoints/step_00000006/rank_0.safetensors", "holds no state of a trainer"),
    ("empty", "load_checkpoint takes a file, and .*empty is a folder"),
    ("plain.safetensors", "holds no state of a trainer"),
]


@pytest.mark.parametrize(("name", "message"), LOADED)
def test_what_is_no_checkpoint_of_weights_is_named(saved: Path, name: str, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        make_trainer(None).load_checkpoint(saved / name)


RESUMED = [
    ("weights.safetensors", "is a file, and a training state is a folder; load_checkpoint loads the weights of a file"),
    ("mixed", r"state\.safetensors is a checkpoint of weights, no training state; use load_checkpoint"),
    ("run", r"there is no training state .* in .*run, which is the folder of a run; to resume that run"),
    ("empty", r"there is no training state \(state\.safetensors\) in .*empty, which is a folder"),
]


def load(path: Path) -> None:
    make_trainer(None).load_training_state(path)


def go_on(path: Path) -> None:
    make_trainer(None).train(samples(), 3, resume_from=path)


@pytest.mark.parametrize("use", [load, go_on])
@pytest.mark.parametrize(("name", "message"), RESUMED)
def test_what_is_no_training_state_is_named(saved: Path, name: str, message: str, use: Callable[[Path], None]) -> None:
    with pytest.raises(CheckpointError, match=message):
        use(saved / name)


def test_a_training_state_is_loaded_by_train_and_not_before(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"batches of 8 samples and this trainer has no data yet; pass it to "):
        load(saved / "state")
    make_trainer(None).save_training_state(tmp_path)
    with pytest.raises(CheckpointError, match=r"was saved before train\(\) had begun"):
        go_on(tmp_path)


def weights() -> Any:
    return make_trainer(None).model.state_dict()


TREES: dict[str, tuple[Callable[[], Any], str]] = {
    "a list": (lambda: [1, 2], "holds no weights of a model"),
    "no weights": (lambda: {"a": 1}, "holds no weights of a model"),
    "a number for weights": (lambda: {"model_state_dict": 3}, "holds no weights of a model"),
    "numbers for weights": (lambda: {"model_state_dict": dict.fromkeys(weights(), 1)}, "does not fit the model"),
    "numbers for names": (lambda: {"model_state_dict": {1: torch.zeros(2)}}, "does not fit the model"),
    "a number for optimizers": (
        lambda: {"model_state_dict": weights(), "optimizer_state_dict": 3},
        "holds a int where the states of optimizers should be",
    ),
    "an optimizer without groups": (
        lambda: {"model_state_dict": weights(), "optimizer_state_dict": {"optimizer": {"state": 3}}},
        r"the state of 'optimizer' in .* cannot be loaded \(KeyError: 'param_groups'\); it was edited",
    ),
}


@pytest.mark.parametrize("name", TREES)
def test_a_checkpoint_of_something_else_is_an_error_of_ours(tmp_path: Path, name: str) -> None:
    make, message = TREES[name]
    write_file(tmp_path / "file.safetensors", make())
    with pytest.raises(CheckpointError, match=message):
        make_trainer(None).load_checkpoint(tmp_path / "file.safetensors")


@pytest.mark.parametrize("run", [3, {}, {"tracked": 3, "processes": 1}, {"tracked": {}, "processes": "x"}])
def test_a_training_state_of_something_else_is_an_error_of_ours(tmp_path: Path, run: Any) -> None:
    write_file(tmp_path / "state.safetensors", {"run": run, "kwargs": {}})
    for use in (load, go_on):
        with pytest.raises(CheckpointError):
            use(tmp_path)
