"""One file with a whole state in it, in the format that its name says.

Safetensors with the rest as JSON in the header, or what `torch.load(weights_only=True)` reads. Either carries a
checksum over all of it, and neither is read by anything that could run code.
"""

import json
import os
import zlib
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file as save_safetensors
from torch import Tensor

from treadle.checkpoint.format.safe_unpickler import read_torch_file
from treadle.checkpoint.format.suffixes import file_format
from treadle.checkpoint.format.torch_file import is_intact, read_format, write_torch
from treadle.checkpoint.format.tree import join, split
from treadle.errors import CheckpointError, StorageError
from treadle.files.atomic_io import replace_file

FORMAT = "treadle-state-1"


def write_file(path: str | os.PathLike[str], tree: Any) -> None:
    """Write `tree` to `path`, in the format that `file_format` finds in its name; the file is complete or not there.

    Raises:
        CheckpointError: The tree holds something that is no plain data, the name is that of a format which is not
            written, or the file cannot be written.
    """
    target, torchs = Path(path), file_format(path) == "torch"
    structure, tensors = split(tree)
    hosted = on_host(tensors)
    state = json.dumps(structure)

    def write(temporary: Path) -> None:
        if torchs:
            write_torch(temporary, join(json.loads(state), hosted), signed=FORMAT)
        else:
            metadata = {"format": FORMAT, "state": state, "crc32": _checksum(state, hosted)}
            save_safetensors(hosted, temporary, metadata=metadata)

    try:
        replace_file(target, write)
    except (OSError, RuntimeError, SafetensorError) as error:
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
        if is_pickle(target):
            return _read_torch(target)
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


def plain(tree: Any) -> Any:
    """Return `tree` with plain containers for all others, and tensors on the host that keep nothing else alive.

    Raises:
        CheckpointError: It holds something that is no plain data.
    """
    structure, tensors = split(tree)
    return join(structure, on_host(tensors))


def _read_torch(path: Path) -> Any:
    """Read what was written for `torch.load`, as data: nothing in it is run, and nothing it names is imported."""
    signed = read_format(path)
    if signed is None:
        raise CheckpointError(
            f"{path} was written by torch.save and is not loaded here, because loading it could run code; "
            "import its weights with Trainer.import_checkpoint or treadle.checkpoint.import_torch"
        )
    if not is_intact(path):
        raise CheckpointError(f"{path} is damaged: its checksum differs")
    if signed != FORMAT:
        raise CheckpointError(f"{path} holds no state of a trainer, or one of a newer Treadle: {signed!r}")
    # Once apart and together again, so that a tensor which stands in several places is one.
    return join(*split(read_torch_file(path)))


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


def is_pickle(path: Path) -> bool:
    """Whether `torch.save`, or pickle itself, wrote a file."""
    with path.open("rb") as file:
        start = file.read(9)
    # A safetensors file begins with the length of its header, any byte at all, and then the header's brace.
    return start.startswith((b"PK\x03\x04", b"\x80")) and start[8:] != b"{"
