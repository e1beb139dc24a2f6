"""A checkpoint that somebody edited, checksums and all, is refused in our words or goes on with the weights it has."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from tests.checkpoint.faults.edited_checkpoints import declare, edit
from tests.interrupting import CutAt, CutError, assert_same_bits, make_trainer, samples
from treadle.callback import TrainerCallback
from treadle.errors import CheckpointError, TreadleError

SEEDS, EACH = range(5), 16


def small_network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Dropout(0.3), nn.Linear(4, 4), nn.Linear(4, 1))


def by_steps(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, 4)


class Loaded(TrainerCallback):
    """Takes note of the weights and the moments that a run goes on with."""

    def on_update_start(self, trainer: Any, **kwargs: Any) -> None:
        if not hasattr(self, "step"):
            self.step = trainer.progress.step
            self.state = {
                "model": {name: value.clone() for name, value in trainer.model.state_dict().items()},
                "moments": {
                    number: {name: value.clone() for name, value in state.items()}
                    for number, state in trainer.optimizer.state_dict()["state"].items()
                },
            }


def run(folder: Path, *callbacks: Any) -> Any:
    trainer = make_trainer(folder, *callbacks, build=small_network)
    options: dict[str, Any] = {"save_every": 2, "log_every": 1, "resume": "auto", "eval_dataset": samples(8)}
    trainer.train(samples(), 2, create_scheduler_fn=by_steps, **options)
    return trainer


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was cut after four of its six steps and has one checkpoint."""
    folder = tmp_path_factory.mktemp("edited") / "run"
    with pytest.raises(CutError):
        run(folder, CutAt(5))
    for path in (folder / "checkpoints").glob("step_*"):
        if path.name != "step_00000004":
            shutil.rmtree(path)
    return folder


@pytest.fixture(scope="module")
def expected(cut: Path) -> dict[str, Any]:
    """What the checkpoint holds."""
    copy = cut.with_name("copy")
    shutil.copytree(cut, copy)
    loaded = Loaded()
    run(copy, loaded)
    assert loaded.step == 4
    return loaded.state


@pytest.mark.parametrize("seed", SEEDS)
def test_an_edited_checkpoint_is_refused_or_goes_on_with_what_it_holds(
    cut: Path, expected: dict[str, Any], seed: int, tmp_path: Path
) -> None:
    chance, refused = random.Random(seed), 0
    for number in range(EACH):
        folder = tmp_path / str(number)
        shutil.copytree(cut, folder)
        what = edit(folder / "checkpoints" / "step_00000004", chance)
        loaded = Loaded()
        try:
            run(folder, loaded)
        except TreadleError:
            refused += 1
            continue
        except Exception as error:
            raise AssertionError(f"{what}: {error!r}") from error
        try:
            assert loaded.step == 4
            assert_same_bits(loaded.state, expected)
        except AssertionError as error:
            raise AssertionError(f"{what}: {error}") from error
    assert EACH * 0.3 < refused < EACH


def structure_of(folder: Path) -> Any:
    return json.loads((folder / "rank_0.json").read_text())


def put(folder: Path, structure: Any) -> None:
    (folder / "rank_0.json").write_text(json.dumps(structure))
    declare(folder, json.loads((folder / "manifest.json").read_text()))


def entries(structure: Any) -> dict[str, Any]:
    found: dict[str, Any] = structure["tracked"]["model"]
    return found


def swap_weights(folder: Path) -> None:
    structure = structure_of(folder)
    model = entries(structure)
    model["1.weight"], model["1.bias"] = model["1.bias"], model["1.weight"]
    put(folder, structure)


def take_another(folder: Path) -> None:
    structure = structure_of(folder)
    entries(structure)["1.weight"]["name"] = "tracked.model.1.bias"
    put(folder, structure)


def forget_moments(folder: Path) -> None:
    structure = structure_of(folder)
    del structure["tracked"]["optimizer"]["optimizer"]["state"]["items"][0]
    put(folder, structure)


def round_weights(folder: Path) -> None:
    tensors = load_file(folder / "rank_0.safetensors")
    tensors["tracked.model.0.weight"] = tensors["tracked.model.0.weight"].half()
    save_file(tensors, folder / "rank_0.safetensors")
    declare(folder, json.loads((folder / "manifest.json").read_text()))


def cut_moments(folder: Path) -> None:
    tensors = load_file(folder / "rank_0.safetensors")
    name = "tracked.optimizer.optimizer.state.0.exp_avg"
    tensors[name] = tensors[name].reshape(-1)
    save_file(tensors, folder / "rank_0.safetensors")
    declare(folder, json.loads((folder / "manifest.json").read_text()))


def move_on(folder: Path) -> None:
    structure = structure_of(folder)
    structure["tracked"]["progress"]["step"] = 5
    put(folder, structure)


def write_words(folder: Path) -> None:
    structure = structure_of(folder)
    structure["tracked"]["optimizer"]["optimizer"]["param_groups"][0]["lr"] = "fast"
    put(folder, structure)


def lose_random_state(folder: Path) -> None:
    structure = structure_of(folder)
    structure["tracked"]["random"]["python"]["items"][1]["items"].pop()
    put(folder, structure)


def share_otherwise(folder: Path) -> None:
    structure = structure_of(folder)
    structure["batch_size"] = 0
    put(folder, structure)


def share_more(folder: Path) -> None:
    structure = structure_of(folder)
    structure["batch_size"] = 5
    put(folder, structure)


def plan_nonsense(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["planned"]["steps"] = "many"
    declare(folder, manifest)


def stop_nonsense(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["stopped"] = ["yes"]
    declare(folder, manifest)


EDITS = [
    (swap_weights, r"damaged: tracked\.model\.1\.weight refers to the tensor of tracked\.model\.1\.bias"),
    (take_another, r"damaged: tracked\.model\.1\.weight refers to the tensor of tracked\.model\.1\.bias"),
    (forget_moments, r"nothing in its state refers to the tensor 'tracked\.optimizer\.optimizer\.state\.0\.exp_avg'"),
    (round_weights, r"tracked\.model\.0\.weight is a float16 tensor of \(4, 2\) where float32 of \(4, 2\) was saved"),
    (cut_moments, r"exp_avg is a float32 tensor of \(8,\) where float32 of \(4, 2\) was saved"),
    (move_on, r"was edited: its manifest says step 4, its state says 5; restore it, or move it away"),
    (write_words, r"the optimizer's state has lr='fast' in group 0, where this optimizer has 0\.05"),
    (
        lose_random_state,
        r"the state of 'random' in the checkpoint cannot be loaded \(ValueError: state vector is the wrong size\); it "
        r"was edited, or written by other code: restore it, or resume from another checkpoint",
    ),
    (share_otherwise, r"had 1 processes and shared batches of 0 samples over 1 of them, which cannot be"),
    (share_more, r"was edited: its manifest says batches of 8 samples, its state 5 on each of 1"),
    (plan_nonsense, r"has a manifest that no run wrote: planned\.steps is 'many'; restore it, or move"),
    (stop_nonsense, r"has a manifest that no run wrote: stopped is \['yes'\]"),
]


@pytest.mark.parametrize(("spoil", "message"), EDITS, ids=[spoil.__name__ for spoil, _ in EDITS])
def test_what_was_edited_is_named(cut: Path, tmp_path: Path, spoil: Any, message: str) -> None:
    shutil.copytree(cut, tmp_path / "run")
    spoil(tmp_path / "run" / "checkpoints" / "step_00000004")
    with pytest.raises(CheckpointError, match=message):
        run(tmp_path / "run")
    # It is refused, and it stays.
    assert (tmp_path / "run" / "checkpoints" / "step_00000004").is_dir()
