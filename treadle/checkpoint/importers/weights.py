"""Weights from files that `torch.save` wrote, and back: explicitly, and without running what is in them."""

import os
import zipfile
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from treadle.checkpoint.format.file import FORMAT, is_pickle, plain, read_file
from treadle.checkpoint.format.safe_unpickler import bytes_claimed
from treadle.checkpoint.format.size_checks import Budget, check_archive, check_sums, check_tensors
from treadle.checkpoint.format.suffixes import file_format
from treadle.checkpoint.format.torch_file import write_torch
from treadle.errors import CheckpointError
from treadle.files.atomic_io import replace_file


def import_torch(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what `torch.save` wrote to `path`: tensors and plain containers only.

    Torch reads it with its restricted unpickler, which knows tensors and plain data and runs nothing else. The
    layout of pytorch-accelerated (`model_state_dict`, `optimizer_state_dict`, `scheduler_state_dict`) comes back
    as it is, so `Trainer.import_checkpoint` can load it.

    Raises:
        CheckpointError: The file cannot be read, or holds something that would have to run code.
    """
    target = Path(path)
    if not target.is_file():
        raise CheckpointError(f"there is no file {target} to import weights from")
    try:
        _check_claims(target)
        state = torch.load(target, map_location="cpu", weights_only=True)
        check_tensors(state, Budget(target.stat().st_size))
    except Exception as error:  # torch's reader, given a damaged file, fails by whatever comes first
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"{target} holds no plain weights that can be read safely: {reason}") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"{target} holds a {type(state).__name__}; weights come as a dict of tensors by name")
    return state


def import_weights(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what a file of weights holds, whoever wrote it: `torch.save`, safetensors, or a trainer of Treadle's.

    Raises:
        CheckpointError: The file cannot be read, or holds something else.
    """
    target = Path(path)
    if not target.is_file() or is_pickle(target):
        return import_torch(target)
    try:
        with safe_open(target, framework="pt", device="cpu") as file:
            of_a_trainer = (file.metadata() or {}).get("format") == FORMAT
    except SafetensorError as error:
        raise CheckpointError(f"{target} is damaged, or no file of weights: {error}") from error
    found: dict[str, Any] = read_file(target) if of_a_trainer else load_file(target)
    return found


def _check_claims(path: Path) -> None:
    """Refuse a file that says it holds more than it can, before torch takes memory for it, or that has changed."""
    size = path.stat().st_size
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            check_archive(archive, size)
            check_sums(archive)
        return
    claimed = bytes_claimed(path)
    if claimed > size:
        raise CheckpointError(f"its tensors say that they hold {claimed} bytes, and the file has {size}")


def weights_in(state: dict[str, Any]) -> dict[str, Any]:
    """Return the weights of a model in what `import_torch` or `read_file` returned, wherever the layout has them.

    Raises:
        CheckpointError: There are none.
    """
    for key in ("model_state_dict", "state_dict", "model"):
        if isinstance(state.get(key), dict):
            state = state[key]
            break
    weights = {
        name.removeprefix("module."): value
        for name, value in state.items()
        if isinstance(name, str) and isinstance(value, torch.Tensor)
    }
    if not weights:
        raise CheckpointError(f"there are no weights among {sorted(map(str, state))}")
    return weights


def export_torch(weights: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Write weights as a file that `torch.load(path, weights_only=True)` reads.

    Raises:
        CheckpointError: The name is that of another format, or the file cannot be written.
    """
    if file_format(path) != "torch" and Path(path).suffix == ".safetensors":
        raise CheckpointError(f"{path} is to be written for torch.load, and its name says safetensors; use .pt")
    try:
        replace_file(Path(path), lambda temporary: write_torch(temporary, plain(weights)))
    except (OSError, RuntimeError) as error:
        raise CheckpointError(f"cannot write {path}: {error}") from error
