"""One file with a whole state in it: safetensors, with the rest as JSON in its header."""

import json
import os
import zlib
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file as save_safetensors
from torch import Tensor

from treadle.checkpoint.durable import replace_file
from treadle.checkpoint.tree import join, split
from treadle.errors import CheckpointError, StorageError

FORMAT = "treadle-state-1"


def write_file(path: str | os.PathLike[str], tree: Any) -> None:
    """Write `tree` to `path`, whatever its suffix; the file is complete or not there.

    Raises:
        CheckpointError: The tree holds something that is no plain data, or the file cannot be written.
    """
    target = Path(path)
    structure, tensors = split(tree)
    hosted = on_host(tensors)
    state = json.dumps(structure)
    metadata = {"format": FORMAT, "state": state, "crc32": _checksum(state, hosted)}
    try:
        replace_file(target, lambda temporary: save_safetensors(hosted, temporary, metadata=metadata))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot write {target}: {error}") from error


def read_file(path: str | os.PathLike[str]) -> Any:
    """Read what `write_file` wrote. No code in the file is ever run.

    Raises:
        CheckpointError: The file is not there, damaged, or of another kind.
        StorageError: It cannot be read now.
    """
    target = Path(path)
    if not target.is_file():
        raise CheckpointError(f"there is no checkpoint file {target}")
    try:
        _reject_pickle(target)
        with safe_open(target, framework="pt", device="cpu") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except OSError as error:
        raise StorageError(f"{target} cannot be read now: {error}; it may be whole") from error
    except SafetensorError as error:
        raise CheckpointError(f"{target} is damaged or no checkpoint: {error}") from error
    if metadata.get("format") != FORMAT:
        raise CheckpointError(f"{target} is a safetensors file, but holds no state of a trainer")
    if "crc32" in metadata and metadata["crc32"] != _checksum(metadata.get("state", ""), tensors):
        raise CheckpointError(f"{target} is damaged: its checksum differs")
    try:
        return join(json.loads(metadata["state"]), tensors)
    except (KeyError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{target} is damaged: its header is no JSON ({error})") from error


def _checksum(state: str, tensors: dict[str, Tensor]) -> str:
    """Return the CRC-32 of everything in a file, as eight hexadecimal digits."""
    value = zlib.crc32(state.encode())
    for name, tensor in sorted(tensors.items()):
        value = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), value)
        value = zlib.crc32(tensor.resolve_conj().reshape(-1).view(torch.uint8).numpy().data, value)
    return f"{value:08x}"


def on_host(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return contiguous tensors on the host of which no two share memory, which safetensors asks for."""
    hosted: dict[str, Tensor] = {}
    memory: set[int] = set()
    for name, tensor in tensors.items():
        tensor = tensor.resolve_conj().resolve_neg().cpu().contiguous()
        storage = tensor.untyped_storage()
        if storage.nbytes() != tensor.nbytes or storage.data_ptr() in memory:
            tensor = tensor.clone()
        memory.add(tensor.untyped_storage().data_ptr())
        hosted[name] = tensor
    return hosted


def _reject_pickle(path: Path) -> None:
    with path.open("rb") as file:
        start = file.read(9)
    # A safetensors file begins with the length of its header, any byte at all, and then the header's brace.
    if start.startswith((b"PK\x03\x04", b"\x80")) and start[8:] != b"{":
        raise CheckpointError(
            f"{path} was written by torch.save and is not loaded here, because loading it could run code; "
            "import its weights with Trainer.import_checkpoint or treadle.checkpoint.import_torch"
        )
