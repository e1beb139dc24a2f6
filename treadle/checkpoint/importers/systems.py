"""Checkpoints of other systems: their tensors and plain data, with nothing in them run."""

import os
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from treadle.checkpoint.format.safe_unpickler import Record, read_with_names
from treadle.checkpoint.importers.transformers_trainer import is_trainer_folder, read_trainer_folder
from treadle.checkpoint.importers.weights import import_torch, weights_in
from treadle.errors import CheckpointError

ONEFLOW = (
    "is a checkpoint of LiBai's, which only OneFlow can read; there, save {name: tensor.numpy()} for each tensor with "
    "numpy.savez, and make tensors of them here"
)


@dataclass
class ForeignCheckpoint:
    """What a checkpoint of another system holds.

    Attributes:
        system: The system that wrote it.
        weights: The weights and buffers of its model, by name.
        optimizer: The state of its optimizer, as torch has it; None if there is none, or more than one.
        scheduler: The state of its schedule, where it is kept in a file of its own; None otherwise.
        facts: Plain data beside them: epoch, step, hyperparameters.
        passed_over: What was left unread, by name: objects that only code in the file could make, and files.
    """

    system: str
    weights: dict[str, Tensor]
    optimizer: dict[str, Any] | None = None
    scheduler: dict[str, Any] | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    passed_over: list[str] = field(default_factory=list)


def read_foreign(path: str | os.PathLike[str]) -> ForeignCheckpoint:
    """Return what a checkpoint of Lightning, detectron2, pytorch-accelerated or transformers' Trainer holds.

    Tensors and plain data are taken. What is neither, such as the settings of a program as objects of its own classes,
    is passed over; no name in the file is ever looked up or called.

    Raises:
        CheckpointError: There is no such file, it is damaged, or no weights are in it.
    """
    target = Path(path)
    if target.is_dir() and (target / "model").exists():
        raise CheckpointError(f"{target} {ONEFLOW}")
    if is_trainer_folder(target):
        folder = read_trainer_folder(target)
        weights, beside = folder.weights, (folder.optimizer, folder.scheduler, folder.facts, folder.passed_over)
        return ForeignCheckpoint("transformers", weights, *beside)
    if not target.is_file():
        raise CheckpointError(f"there is no file {target} to import weights from")
    state, unknown = _read(target)
    if not isinstance(state, dict):
        kind = state.kind if isinstance(state, Record) else type(state).__name__
        raise CheckpointError(f"{target} holds a {kind}; weights come as a dict of tensors by name")
    try:
        _check_nodes(state, target)
        return _sorted_out(state, unknown)
    except RecursionError:
        raise CheckpointError(f"{target} holds something that holds itself, which no checkpoint does") from None


def _check_nodes(state: Any, path: Path) -> None:
    """Refuse plain data that refers to itself so often that, written out, it would be far more than the file."""
    size = path.stat().st_size
    left, waiting = 100_000 + size, [state]
    while waiting:
        one = waiting.pop()
        inside = one.entries if isinstance(one, Record) else one
        if isinstance(inside, dict):
            waiting += inside.values()
        elif isinstance(inside, (list, tuple)):
            waiting += inside
        left -= 1
        if left < len(waiting):
            raise CheckpointError(
                f"{path} holds something that holds itself, or the same over and over: written out it would be more "
                f"than a file of {size} bytes can mean"
            )


def _sorted_out(state: dict[str, Any], unknown: list[str]) -> ForeignCheckpoint:
    found = ForeignCheckpoint(_detect_system(state), weights_in(state), _optimizer_state(state), passed_over=unknown)
    taken = {"state_dict", "model_state_dict", "model", "optimizer", "optimizer_states", "optimizer_state_dict"}
    plain = {str(name): _plain(value) for name, value in state.items() if name not in taken}
    found.facts = {name: value for name, value in plain.items() if value is not None and name not in found.weights}
    return found


def _read(path: Path) -> tuple[Any, list[str]]:
    """Return what is in a file, and the names in it that were not looked up."""
    if zipfile.is_zipfile(path):
        return read_with_names(path)
    # Before 1.6 torch wrote another format, which its own restricted reader still knows.
    return import_torch(path), []


def _detect_system(state: dict[str, Any]) -> str:
    if "pytorch-lightning_version" in state or "optimizer_states" in state:
        return "Lightning"
    if "model_state_dict" in state:
        return "pytorch-accelerated"
    if isinstance(state.get("model"), dict) and {"iteration", "scheduler", "__author__"} & state.keys():
        return "detectron2"
    if {"config", "other_parameter"} <= state.keys():
        return "RecBole"
    return "torch"


def _optimizer_state(state: dict[str, Any]) -> dict[str, Any] | None:
    several = state.get("optimizer_states")
    found = several[0] if isinstance(several, list) and len(several) == 1 else None
    for name in ("optimizer_state_dict", "optimizer"):
        found = state.get(name) if found is None else found
    return _data(found) if isinstance(found, dict) and {"state", "param_groups"} <= found.keys() else None


def _data(value: Any) -> Any:
    """Return a value with only what was put by key of every object that is no plain data."""
    if isinstance(value, Record):
        value = value.entries
    if isinstance(value, dict):
        return {key: _data(item) for key, item in value.items()}
    return type(value)(map(_data, value)) if isinstance(value, (list, tuple)) else value


def _plain(value: Any) -> Any:
    """Return what JSON can hold of a value; None if that is nothing."""
    if isinstance(value, Record):
        value = value.entries
    if isinstance(value, dict):
        inside = {str(key): _plain(item) for key, item in value.items()}
        kept = {key: item for key, item in inside.items() if item is not None}
        return kept or None
    if isinstance(value, (list, tuple)):
        items = [_plain(item) for item in value]
        return items if items and all(item is not None for item in items) else None
    return value if isinstance(value, (bool, int, float, str)) else None
