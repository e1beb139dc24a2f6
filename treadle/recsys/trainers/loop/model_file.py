"""The file of a trained model, `saved/BPR-Jan-31-2026_12-00-00.pth`: plain data and tensors, complete or absent."""

import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from treadle.checkpoint import read_file, write_file
from treadle.checkpoint.checkpointer import RunCheckpointer
from treadle.checkpoint.format.file import is_pickle
from treadle.checkpoint.format.torch_file import read_format
from treadle.checkpoint.format.tree import split
from treadle.checkpoint.run_state import Restored, RunState
from treadle.errors import CheckpointError, DataError
from treadle.recsys.optional import scipy_sparse

if TYPE_CHECKING:
    from treadle.recsys.trainers.loop.core import RecsysCore
    from treadle.recsys.trainers.trainer import Trainer as Face

# What belongs to a model beside its weights, as plain data and tensors


KIND = "treadle_kind"
"""The key that tells what a dict stands for."""


def encoded(value: Any) -> Any:
    """Return an attribute as tensors and plain data: arrays, and sparse matrices of torch and SciPy, as their parts.

    >>> encoded(np.array([1.5]))["data"].tolist()
    [1.5]
    """
    if isinstance(value, np.ndarray):
        return {KIND: "array", "data": torch.from_numpy(np.array(value))}
    if isinstance(value, Tensor) and value.layout is not torch.strided:
        entries: Any = value.detach().to_sparse_coo().coalesce()  # type: ignore[no-untyped-call]
        layout = "csr" if value.layout is torch.sparse_csr else "coo"
        parts = {"indices": entries.indices(), "values": entries.values(), "shape": list(value.shape)}
        return {KIND: "sparse", "layout": layout, **parts}
    if hasattr(value, "tocoo"):
        entries = value.tocoo()
        indices = torch.from_numpy(np.stack([entries.row, entries.col]).astype(np.int64))
        data = torch.from_numpy(np.array(entries.data))
        return {KIND: "scipy", "layout": value.format, "indices": indices, "values": data, "shape": list(value.shape)}
    return value


def decoded(value: Any, device: torch.device) -> Any:
    """Return what `encoded` was given; tensors on `device`."""
    if isinstance(value, Tensor):
        return value.to(device)
    kind = value.get(KIND) if isinstance(value, dict) else None
    if kind == "array":
        return value["data"].numpy()
    if kind == "sparse":
        made = torch.sparse_coo_tensor(value["indices"], value["values"], value["shape"], check_invariants=False)
        made = made.coalesce().to(device)
        return made.to_sparse_csr() if value["layout"] == "csr" else made
    if kind == "scipy":
        entries = (value["values"].numpy(), tuple(value["indices"].numpy()))
        return scipy_sparse().coo_matrix(entries, shape=tuple(value["shape"])).asformat(value["layout"])
    return value


class OtherParameters:
    """The attributes that `model.other_parameter()` names; modules among them are part of the weights anyway.

    Args:
        model: The model.
        device: Where its tensors are.
    """

    def __init__(self, model: Any, device: torch.device) -> None:
        self._model, self._device = model, device

    def state_dict(self) -> dict[str, Any]:
        """Return them as plain data and tensors."""
        own = self._model.other_parameter() if hasattr(self._model, "other_parameter") else {}
        return {name: encoded(value) for name, value in (own or {}).items() if not isinstance(value, nn.Module)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set them."""
        if state:
            self._model.load_other_parameter({name: decoded(value, self._device) for name, value in state.items()})


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
    if Path(path).is_file() and is_pickle(Path(path)) and read_format(path) is None:
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
    return {name: value if _is_storable(value) else _class_name(value) for name, value in settings.items()}


def _is_storable(value: Any) -> bool:
    try:
        split(value)
    except CheckpointError:
        return False
    return True


def _class_name(value: Any) -> str:
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


def copy_weights(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a copy of weights, where they are."""
    return {name: tensor.detach().clone() for name, tensor in state.items() if isinstance(tensor, torch.Tensor)}


# How runs of this door are kept: with their settings, and with what tells their users and items from others


class ModelFileState(RunState):
    """The state of a run, which may be read from the file of a model."""

    def __init__(self, core: "RecsysCore", face: "Face") -> None:
        super().__init__(core)
        self._face = face

    def read(self, folder: str | os.PathLike[str]) -> Restored:
        """Return the state of the run that is in the file of a model."""
        return self._face._run_state_in_file(Path(folder))


class RecommenderCheckpointer(RunCheckpointer):
    """Keeps a run with its settings and the tokens of its users and items.

    Args:
        core: Whose run it is.
        state: What is saved of it.
        folder: The folder of the run.
        face: The trainer that a user sees.
    """

    trainer: "RecsysCore"

    def __init__(self, core: "RecsysCore", state: RunState, folder: Path, face: "Face") -> None:
        super().__init__(core, state, folder)
        self._face = face

    def sources(self) -> list[Any]:
        """Return what names the files that the run reads: the settings name the folder of the data."""
        return [*super().sources(), self._face.config["data_path"]]

    def described(self) -> dict[str, Any]:
        """Return what is trained and how, with all settings: enough to start the same run again."""
        config = self._face.config
        return {**super().described(), "dataset": config.dataset, "settings": storable(config.plain())}

    def facts(self, *, best: bool, finished: bool) -> dict[str, Any]:
        """Return what the manifest of a checkpoint says of the run, and whose tokens it knows."""
        return {**super().facts(best=best, finished=finished), "fingerprints": self._face._fingerprints()}

    def take(self, step: int) -> None:
        """Read the checkpoint at `step`, if its users and items are those of the data."""
        dataset = getattr(self.trainer.train_data, "dataset", None)
        check_tokens(self.store.manifest(step), dataset, self.trainer.run_dir)
        super().take(step)

    def identity(self) -> dict[str, Any]:
        """Return what must be the same for a run to go on."""
        identity = super().identity()
        if not any(parameter.requires_grad for parameter in self.trainer.model.parameters()):
            # What a model without weights has is as large as its data makes it, and not there before it is fitted.
            identity["model"] = {"class": identity["model"]["class"]}
        return identity

    def file_writer(self) -> threading.Thread | None:
        """Return the thread that writes the best model: a checkpoint knows of its score, so the file comes first."""
        return self._face._files.writer()
