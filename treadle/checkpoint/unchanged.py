"""Tensors that stay as they are from save to save: kept in files of their own, which the next checkpoints share."""

import ctypes
import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

LEAST_BYTES = 1 << 20
"""Less than this is written again: a file more would cost as much as it saves."""
MOST_FILES = 8
"""With more of them than this, all that is unchanged is put into one file."""
_SAMPLED = 2048


@dataclass(frozen=True)
class SharedFile:
    """A file of unchanged tensors, which the checkpoints of a run share.

    Attributes:
        name: Its name, which no other file of the run has.
        digests: What identifies the content of each tensor in it.
        entry: Its size and checksum, as a manifest lists them; empty where they are not known.
    """

    name: str
    digests: Mapping[str, str]
    entry: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Division:
    """How the tensors of one save are divided among files.

    Attributes:
        main: The tensors that go into the file of this save.
        shared: The files that an earlier checkpoint may have already, with their tensors, should it not.
    """

    main: dict[str, Tensor]
    shared: tuple[tuple[SharedFile, dict[str, Tensor]], ...]


@dataclass(frozen=True)
class _Seen:
    """What is remembered of a tensor in the last save; a full digest is taken only of one that may be unchanged."""

    sample: str | None
    digest: str | None


class Unchanged:
    """Tells the tensors of a rank that have not changed since an earlier save from the others, by their content."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}
        self._files: dict[str, SharedFile] = {}

    def divide(self, rank: int, save: str, tensors: Mapping[str, Tensor], frozen: Collection[str] = ()) -> Division:
        """Divide the tensors of a save into those that are written now and those that are shared.

        Args:
            rank: Whose they are.
            save: What no other save is called: a file that two of them wrote is never taken for one.
            tensors: All of them by name, on the host.
            frozen: The names of those that nothing trains: the first save keeps them apart already.
        """
        seen = {name: self._look_at(name, tensor, name in frozen) for name, tensor in tensors.items()}
        same = {name for name, one in seen.items() if one.digest is not None and self._is_same(name, one, frozen)}
        linked = [file for file in self._files.values() if all(_has(seen, pair) for pair in file.digests.items())]
        if len(linked) > MOST_FILES:
            linked = []
        same.difference_update(*(file.digests for file in linked))
        if sum(tensors[name].nbytes for name in same) >= LEAST_BYTES:
            linked.append(_file_name(rank, save, {name: str(seen[name].digest) for name in sorted(same)}))
        self._seen = seen
        shared = tuple((file, {name: tensors[name] for name in file.digests}) for file in linked)
        apart = {name for file in linked for name in file.digests}
        return Division({name: tensor for name, tensor in tensors.items() if name not in apart}, shared)

    def written(self, files: Collection[SharedFile]) -> None:
        """Take note of the shared files of the last checkpoint, with their sizes and checksums."""
        self._files = {file.name: file for file in files}

    def resume(self, files: Collection[SharedFile]) -> None:
        """Go on from a checkpoint with these shared files."""
        self.written(files)
        self._seen = {name: _Seen(None, digest) for file in files for name, digest in file.digests.items()}

    def _look_at(self, name: str, tensor: Tensor, frozen: bool) -> _Seen:
        sample, before = _digest(tensor, sampled=True), self._seen.get(name)
        may_be_same = frozen if before is None else before.sample in (None, sample)
        return _Seen(sample, _digest(tensor) if may_be_same else None)

    def _is_same(self, name: str, now: _Seen, frozen: Collection[str]) -> bool:
        before = self._seen.get(name)
        return name in frozen if before is None else before.digest == now.digest


def header(files: Collection[SharedFile]) -> dict[str, str] | None:
    """Return what the file of a save says of the shared files that belong to it; None where there are none."""
    return {"shared": json.dumps([file.name for file in files])} if files else None


def shared_header(file: SharedFile) -> dict[str, str]:
    """Return what a shared file says of its tensors."""
    return {"digests": json.dumps(dict(file.digests))}


def _has(seen: Mapping[str, _Seen], tensor: tuple[str, str]) -> bool:
    found = seen.get(tensor[0])
    return found is not None and found.digest == tensor[1]


def _file_name(rank: int, save: str, digests: dict[str, str]) -> SharedFile:
    content = hashlib.blake2b(json.dumps([save, digests]).encode(), digest_size=8).hexdigest()
    return SharedFile(f"rank_{rank}.{content}.safetensors", digests)


def _digest(tensor: Tensor, *, sampled: bool = False) -> str:
    """Return what identifies a tensor, or, in a fraction of the time, what differs for most that differ."""
    tensor = tensor.contiguous()
    content = memoryview((ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr()) if tensor.nbytes else b"")
    value = hashlib.blake2b(f"{tensor.dtype} {tuple(tensor.shape)}".encode(), digest_size=20)
    if sampled and len(content) > 4 * _SAMPLED:
        value.update(content[:_SAMPLED])
        value.update(bytes(content[:: len(content) // _SAMPLED]))
    else:
        value.update(content)
    return value.hexdigest()
