"""The file of a trained model, `saved/BPR-Jan-31-2026_12-00-00.pth`: plain data and tensors, complete or absent."""

import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from treadle.checkpoint import read_file, write_file
from treadle.checkpoint.file import is_pickle
from treadle.checkpoint.torch_file import signature_of
from treadle.checkpoint.tree import split
from treadle.errors import CheckpointError, DataError

FORMAT = "treadle-recsys-1"
SUFFIX = ".pth"


def new_name(model: str) -> str:
    """Return a name for a run of a model that begins now, without a suffix."""
    return f"{model}-{time.strftime('%b-%d-%Y_%H-%M-%S')}"


def reserve(folder: Path, name: str) -> Path:
    """Make a new folder for a run, and return it; a run of the same second gets a number behind its name.

    Raises:
        CheckpointError: The folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(1, 10_000):
            path = folder / (name if number == 1 else f"{name}-{number}")
            if path.with_name(path.name + SUFFIX).exists():
                continue
            try:
                path.mkdir()
            except FileExistsError:
                continue
            return path
    except OSError as error:
        raise CheckpointError(f"checkpoint_dir={str(folder)!r} cannot be written to: {error}") from error
    raise CheckpointError(f"{folder} holds {number} runs called {name}; empty it, or use another checkpoint_dir")


PARTS: dict[str, type] = {
    "model": str,
    "config": dict,
    "fingerprints": dict,
    "epoch": int,
    "cur_step": int,
    "train_loss_dict": dict,
    "state_dict": dict,
    "other_parameter": dict,
    "optimizer": dict,
    "run": dict,
    "ranks": list,
}
"""What is in the file of a model, and of which types."""
OPTIONAL = ("fingerprints", "run", "ranks")
"""What files of older versions, or those saved outside a run, are without."""


def read_model_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what is in the file of a model.

    Raises:
        CheckpointError: It is not there, damaged, or something else.
    """
    if Path(path).is_file() and is_pickle(Path(path)) and signature_of(path) is None:
        raise CheckpointError(
            f"{os.fspath(path)} was written by torch.save, as RecBole's checkpoints are, and could run code when it is "
            "loaded; treadle.recsys.compat.import_checkpoint reads its weights without running anything"
        )
    state = read_file(path)
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise CheckpointError(f"{os.fspath(path)} is no model of a recommender; its trainer writes such files")
    missing = [name for name in PARTS if name not in state and name not in OPTIONAL]
    if missing:
        raise CheckpointError(f"{os.fspath(path)} was edited: it lacks its {missing[0]}; restore the file")
    for name, kind in PARTS.items():
        if name in state and not isinstance(state[name], kind):
            raise CheckpointError(
                f"{os.fspath(path)} was edited: its {name} is a {type(state[name]).__name__}, where a trainer writes a "
                f"{kind.__name__}; restore the file"
            )
    return state


def check_tokens(saved: Mapping[str, Any], dataset: Any, where: Any) -> None:
    """Make sure that an id stands for the same user or item as when a model was trained.

    Args:
        saved: What was saved with the model; what is older than `fingerprints` says nothing.
        dataset: The data it is to be used with; what is no data set of this door is not looked at.
        where: Where it was saved, for messages.

    Raises:
        DataError: Users or items have other tokens, or stand in another order.
    """
    known = saved.get("fingerprints", {})
    for field, fingerprint in getattr(dataset, "fingerprints", {}).items():
        if known.get(field, fingerprint) != fingerprint:
            raise DataError(
                f"{where} was trained with other tokens of {field} than {dataset.dataset_name!r} has now, or in "
                "another order; bring the data back as it was, or train again"
            )


def storable(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings as a file can hold them; what is no plain data, such as a function, becomes its name."""
    return {name: value if _is_storable(value) else _name_of(value) for name, value in settings.items()}


def _is_storable(value: Any) -> bool:
    try:
        split(value)
    except CheckpointError:
        return False
    return True


def _name_of(value: Any) -> str:
    return str(getattr(value, "__qualname__", value))


class ModelFiles:
    """Writes files of models while training goes on; an error is raised when the next one is written, or waited for."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def write(self, path: str | os.PathLike[str], state: dict[str, Any]) -> None:
        """Write a state as it is now; on return it may change."""
        self.wait()
        kept = _copied(state)
        self._thread = threading.Thread(target=self._write, args=(Path(path), kept), name="treadle-model-file")
        self._thread.start()

    def _write(self, path: Path, state: dict[str, Any]) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, state)
        except Exception as error:
            self._error = error

    def writer(self) -> threading.Thread | None:
        """Return the thread that may still be writing; None if nothing is being written."""
        return self._thread

    def settle(self) -> None:
        """Wait until nothing is being written, whether or not it could be: another error is on its way already."""
        if self._thread is not None:
            self._thread.join()

    def wait(self) -> None:
        """Wait until what was written last is on disk.

        Raises:
            CheckpointError: It could not be written.
        """
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        error, self._error = self._error, None
        if isinstance(error, OSError):
            raise CheckpointError(f"the model cannot be saved: {error}") from error
        if error is not None:
            raise error


def _copied(value: Any) -> Any:
    """Return a tree with tensors of its own, on the host."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_copied(item) for item in value)
    return value


def kept_weights(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a copy of weights, where they are."""
    return {name: tensor.detach().clone() for name, tensor in state.items() if isinstance(tensor, torch.Tensor)}
