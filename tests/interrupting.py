"""Small real runs that are cut short in this process and started again, and how two of them are compared."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from treadle.callback import TrainerCallback
from treadle.trainer import Trainer


class CutError(Exception):
    """What a run dies of in the middle, as others die of a kill."""


class Updates(TrainerCallback):
    """Takes note of the step that a run goes on from, and of how many updates it makes from there.

    That it ends in the same bits says nothing of either: so does a run that begins all over again.
    """

    def __init__(self) -> None:
        self.began = self.made = self.ended = 0

    def on_training_run_start(self, trainer: Any, **kwargs: Any) -> None:
        self.began = self.ended = trainer.progress.step
        self.made = 0

    def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
        self.made += 1
        self.ended = trainer.progress.step


class CutAt(Updates):
    """Makes the run die once so many updates are done."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step

    def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
        super().on_update_end(trainer)
        if trainer.progress.step == self.step:
            raise CutError(f"cut at step {self.step}")


class Rates(TrainerCallback):
    """Takes note of the learning rate that each update was made with, by the number of the update."""

    def __init__(self) -> None:
        self.used: dict[int, float] = {}

    def on_train_step_start(self, trainer: Any, **kwargs: Any) -> None:
        self.used[trainer.progress.step + 1] = trainer.optimizer.param_groups[0]["lr"]


def samples(count: int = 24) -> TensorDataset:
    """24 samples: with the default batch size of 8, three steps an epoch."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(count, 2, generator=generator)
    return TensorDataset(inputs, inputs @ torch.tensor([[1.0], [-2.0]]) + 0.5)


def network() -> nn.Module:
    """A network with buffers that move and with randomness of its own, always with the same weights."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 1))


def plain_network() -> nn.Module:
    """A linear model, always with the same weights: easily followed by hand."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Linear(2, 1)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.05, weight_decay=0.1)


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.1)


def make_trainer(
    run_dir: Path | None,
    *callbacks: Any,
    build: Callable[[], nn.Module] = network,
    optimizer: Callable[[Any], torch.optim.Optimizer] = adamw,
    kind: Any = Trainer,
    **kwargs: Any,
) -> Any:
    """Return a trainer as a new process would build it: the same model, a fresh optimizer."""
    model = build()
    options = {"seed": 1, "device": "cpu", "loss_func": nn.MSELoss(), **kwargs}
    loss = options.pop("loss_func")
    if not any(isinstance(callback, Updates) for callback in callbacks):
        callbacks = (*callbacks, Updates())
    return kind(model, loss, optimizer(model.parameters()), callbacks=callbacks, run_dir=run_dir, **options)


def updates_of(trainer: Any) -> tuple[int, int]:
    """Return the step that the last run of a trainer of `make_trainer` went on from, and how many updates it made."""
    updates = next(one for one in trainer.callback_handler.callback_list if isinstance(one, Updates))
    return updates.began, updates.made


def starts_of(run_dir: Path) -> list[int]:
    """Return the steps that the starts of a run went on from, in whatever processes they were."""
    return [start["step"] for start in json.loads((run_dir / "manifest.json").read_text())["starts"]]


def train_through(cuts: list[int], make: Callable[..., Any], train: Callable[[Any], Any], *, saved: int = 2) -> Any:
    """Start a run again and again, each time dying after one of `cuts`, until it ends; return the last trainer.

    Each start must go on from the last step that was saved, and make the updates from there and no others.

    Args:
        cuts: The steps to die after.
        make: Called with the callbacks that make a run die; returns a new trainer.
        train: Called with the trainer; trains it.
        saved: Every how many steps the run is saved.
    """
    began = 0
    for step in cuts:
        cut = CutAt(step)
        try:
            train(make(cut))
        except CutError:
            _require(cut, began, step)
            # It dies before the update that it dies of is saved.
            began = (step - 1) // saved * saved
            continue
        raise AssertionError(f"the run ended before step {step}")
    updates = Updates()
    last = make(updates)
    train(last)
    _require(updates, began, updates.ended)
    return last


def _require(updates: Updates, began: int, ended: int) -> None:
    found, wanted = (updates.began, updates.made), (began, ended - began)
    assert found == wanted, (
        f"the run went on from step {found[0]} with {found[1]} updates, not {wanted[0]}, {wanted[1]}"
    )


def tensors_of(value: Any, place: str = "") -> dict[str, Any]:
    """Return everything in a tree of states, by its place."""
    if isinstance(value, Mapping):
        items = [(str(key), item) for key, item in value.items()]
    elif isinstance(value, (list, tuple)):
        items = [(str(key), item) for key, item in enumerate(value)]
    else:
        return {place: value}
    return {name: leaf for key, item in items for name, leaf in tensors_of(item, f"{place}.{key}").items()}


def assert_same_bits(left: Any, right: Any) -> None:
    """Compare two trees of states, with nan equal to itself."""
    one, other = tensors_of(left), tensors_of(right)
    assert one.keys() == other.keys()
    for place, value in one.items():
        same = _same(value, other[place])
        assert same, f"{place.lstrip('.')}: {value} and {other[place]}"


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, Tensor):
        return left.dtype == right.dtype and torch.equal(left.nan_to_num(), right.nan_to_num())
    return bool(left == right or (left != left and right != right))


def state_of(trainer: Any) -> dict[str, Any]:
    """Return the weights, buffers and optimizer state of a trainer."""
    optimizers = {name: optimizer.state_dict() for name, optimizer in trainer.optimizers().items()}
    return {"model": trainer.model.state_dict(), "optimizers": optimizers}


class Counter:
    """State of the user's own."""

    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


MEASURED = {
    "wall_time",
    "time",
    "data_time",
    "eta_seconds",
    "samples_per_second",
    "steps_per_second",
    "tokens_per_second",
    "peak_memory_mib",
}
"""What a run says of the machine and the moment, and not of the training: no two runs have it in common."""


def assert_same_run(left: Any, right: Any) -> None:
    """Compare weights, buffers, optimizers, progress and the history of metrics of two trainers, bit for bit."""
    assert_same_bits(state_of(left), state_of(right))
    assert left.progress == right.progress
    assert_same_bits(_comparable(left.run_history.state_dict()), _comparable(right.run_history.state_dict()))


def _comparable(history: dict[str, Any]) -> dict[str, Any]:
    """Return a history without what a run measures of the machine."""
    storage = {name: series for name, series in history.get("storage", {}).items() if name not in MEASURED}
    return {**history, "storage": storage}


def metric_lines(run_dir: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """Return the lines of a run's metrics without times and memory; anything that is no strict JSON is an error."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    lines = (run_dir / name).read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line, parse_constant=refuse) for line in lines]
    return [{name: value for name, value in row.items() if name not in MEASURED} for row in rows]


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file below `folder` with what is in it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def checkpoint_steps(run_dir: Path) -> list[int]:
    """Return the steps of which the folder of a run holds a checkpoint."""
    return sorted(int(path.name.removeprefix("step_")) for path in (run_dir / "checkpoints").glob("step_*"))


CUTS = [2, 7, 8]
"""Steps to die after, of the twelve of four epochs: in the first, and twice in another."""


def check(
    tmp_path: Path,
    make: Callable[..., Any],
    train: Callable[[Any], Any],
    cuts: list[int] = CUTS,
    *,
    saved: int = 2,
) -> Any:
    """Train once through and once through `cuts`, as `train_through` does; compare everything, return both trainers."""
    whole = make(tmp_path / "whole")
    train(whole)
    cut = train_through(cuts, partial(make, tmp_path / "cut"), train, saved=saved)
    assert_same_run(cut, whole)
    assert metric_lines(tmp_path / "cut") == metric_lines(tmp_path / "whole")
    return cut, whole


def simply(trainer: Any, data: Any = None, **kwargs: Any) -> None:
    """Train for four epochs of three steps, resuming, with a log and a save at every second step."""
    options: dict[str, Any] = {"save_every": 2, "log_every": 2, "resume": "auto", **kwargs}
    trainer.train(samples() if data is None else data, 4, **options)
