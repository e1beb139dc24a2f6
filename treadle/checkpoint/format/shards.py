"""Tensors that are spread over the ranks of a run: written in pieces, read in other pieces."""

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from treadle.errors import CheckpointError

Box = tuple[tuple[int, ...], tuple[int, ...]]
"""Where a piece of a tensor begins, and its extent, in every dimension."""
NUMBERS = {int, float}


@dataclass(frozen=True, eq=False)
class Piece:
    """What this rank holds of a tensor that several share, as it stands in a state that is to be saved.

    Args:
        tensor: The numbers.
        shape: The shape of the whole.
        offset: Where in it these begin.
        written: Whether this rank writes them; of several that hold the same, one does.
    """

    tensor: Tensor
    shape: tuple[int, ...]
    offset: tuple[int, ...]
    written: bool = True


class SavedTensor:
    """A tensor in a checkpoint, of which any part is read from whichever files hold it.

    Attributes:
        shape: Its shape.
    """

    def __init__(self, shape: Sequence[int], name: str) -> None:
        self.shape = tuple(shape)
        self._name = name
        self._parts: list[tuple[Box, Callable[[], Any]]] = []

    def add(self, offset: Sequence[int], extent: Sequence[int], reader: Callable[[], Any]) -> None:
        """Add a piece; `reader` opens it for slicing."""
        self._parts.append(((tuple(offset), tuple(extent)), reader))

    def merge(self, other: "SavedTensor") -> None:
        """Add the pieces that another rank wrote of the same tensor."""
        self._parts += other._parts

    def whole(self) -> Tensor:
        """Return all of it."""
        return self.part((0,) * len(self.shape), self.shape)

    def part(self, offset: Sequence[int], extent: Sequence[int]) -> Tensor:
        """Return the part that begins at `offset`; exactly the bytes of it are read.

        Raises:
            CheckpointError: Some of it is in no file.
        """
        wanted: Box = (tuple(offset), tuple(extent))
        self._check_held(wanted)
        found, result = 0, None
        for box, reader in self._parts:
            common = _overlap(wanted, box)
            if common is None and not (result is None and 0 in wanted[1]):
                continue
            piece = _cut(reader(), box, common or (box[0], (0,) * len(box[0])))
            if piece.shape == wanted[1]:
                return piece
            if result is None:
                result = torch.empty(wanted[1], dtype=piece.dtype)
            if common is not None:
                result[_slices(common, wanted)] = piece
                found += piece.numel()
        if result is None or found < result.numel():
            raise CheckpointError(f"the checkpoint lacks a part of {self._name}, at {wanted[0]} of {self.shape}")
        return result

    def _check_held(self, wanted: Box) -> None:
        """Refuse what the pieces cannot make up before memory is taken for it."""
        if len(wanted[0]) != len(self.shape) or any(len(box[0]) != len(self.shape) for box, _ in self._parts):
            raise CheckpointError(
                f"the pieces of {self._name} in the checkpoint have other dimensions than {self.shape}"
            )
        common = (_overlap(wanted, box) for box, _ in self._parts)
        if sum(math.prod(one[1]) for one in common if one is not None) < math.prod(wanted[1]):
            raise CheckpointError(f"the checkpoint lacks a part of {self._name}, at {wanted[0]} of {self.shape}")


def _overlap(one: Box, other: Box) -> Box | None:
    """Return what two boxes have in common; None if nothing.

    >>> _overlap(((0, 2), (4, 4)), ((2, 0), (4, 4)))
    ((2, 2), (2, 2))
    """
    begin = tuple(max(a, b) for a, b in zip(one[0], other[0], strict=True))
    ends = zip(one[0], one[1], other[0], other[1], strict=True)
    end = tuple(min(a + size, b + extent) for a, size, b, extent in ends)
    extent = tuple(last - first for first, last in zip(begin, end, strict=True))
    return None if any(size <= 0 for size in extent) else (begin, extent)


def _slices(box: Box, within: Box) -> tuple[slice, ...]:
    starts = (first - outer for first, outer in zip(box[0], within[0], strict=True))
    return tuple(slice(start, start + size) for start, size in zip(starts, box[1], strict=True))


def _cut(source: Any, held: Box, wanted: Box) -> Tensor:
    """Return the part of an opened tensor; one without dimensions cannot be cut."""
    piece: Tensor = source[_slices(wanted, held)] if held[1] else source[...]
    return piece


SHARED = "shared"
"""The folder of such files where a file cannot lie in two folders."""
SHARED_NAME = re.compile(r"rank_\d{1,9}\.[0-9a-f]{16}\.safetensors")
"""What a file of tensors is called that several checkpoints share: its rank, and a word of its own."""


class PartFile:
    """The tensors that one rank wrote, opened when the first is asked for.

    Those that had not changed since an earlier checkpoint are in files of their own, which its header names.

    Args:
        path: The file.
        place: Says where a file lies that several checkpoints share; by default beside this one.
    """

    def __init__(self, path: Path, place: Callable[[str], Path] | None = None) -> None:
        self._path, self._place = path, place or path.with_name
        self._files: dict[Path, Any] = {}
        self._with: dict[str, Any] = {}

    def open(self) -> None:
        """Open the files now: they may go away, and can be read all the same."""
        self._open()

    def slicer(self, name: str) -> Callable[[], Any]:
        """Return what opens the tensor called `name` for slicing."""
        return lambda: self._slice(name)

    def shape_of(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor, without reading it."""
        return tuple(self._file_with(name).get_slice(name).get_shape())

    def read(self, name: str) -> Tensor:
        """Return a whole tensor."""
        return self._file_with(name).get_tensor(name)  # type: ignore[no-any-return]

    def names(self) -> list[str]:
        """Return the names of all tensors."""
        return list(self._open())

    def read_all(self) -> dict[str, Tensor]:
        """Return all tensors by name."""
        return {name: self.read(name) for name in self.names()}

    def shared_names(self) -> list[str]:
        """Return the names of the files beside this one that hold the rest of its tensors.

        Raises:
            CheckpointError: Its header names something else.
        """
        text = (self._own().metadata() or {}).get("shared", "[]")
        names = json.loads(text)
        if not isinstance(names, list) or not all(isinstance(one, str) and SHARED_NAME.fullmatch(one) for one in names):
            raise CheckpointError(f"{self._path} is damaged: its header names {text[:200]} as files with its tensors")
        return names

    def shared_digests(self) -> dict[str, dict[str, str]]:
        """Return, for each of these files, what identifies the content of its tensors."""
        headers = {name: self._shared(name).metadata() or {} for name in self.shared_names()}
        return {name: json.loads(header.get("digests", "{}")) for name, header in headers.items()}

    def _slice(self, name: str) -> Any:
        found = self._file_with(name).get_slice(name)
        return found if found.get_shape() else self.read(name)

    def _file_with(self, name: str) -> Any:
        return self._open().get(name) or self._own()

    def _open(self) -> dict[str, Any]:
        """Return the opened file of each tensor."""
        if not self._with:
            for file in (self._own(), *map(self._shared, self.shared_names())):
                self._with.update(dict.fromkeys(file.keys(), file))
        return self._with

    def _own(self) -> Any:
        return self._file(self._path)

    def _shared(self, name: str) -> Any:
        return self._file(self._place(name))

    def _file(self, path: Path) -> Any:
        if path not in self._files:
            self._files[path] = safe_open(path, framework="pt", device="cpu")
        return self._files[path]


def materialised(tree: Any) -> Any:
    """Return `tree` with every saved tensor read as a whole."""
    if isinstance(tree, SavedTensor):
        return tree.whole()
    if isinstance(tree, dict):
        return {key: materialised(value) for key, value in tree.items()}
    if isinstance(tree, list) and set(map(type, tree)) <= NUMBERS:
        # A history of thousands of numbers is told at a glance.
        return tree.copy()
    if isinstance(tree, (list, tuple)):
        return type(tree)(map(materialised, tree))
    return tree


def merged(trees: Sequence[Any]) -> Any:
    """Return the state that several ranks wrote parts of: entries of dicts and pieces of tensors are put together.

    Where ranks differ in anything else, the first one's counts.
    """
    first = trees[0]
    if isinstance(first, SavedTensor):
        for other in trees[1:]:
            if isinstance(other, SavedTensor):
                first.merge(other)
        return first
    if not isinstance(first, dict):
        return first
    names = dict.fromkeys(name for tree in trees if isinstance(tree, dict) for name in tree)
    return {name: merged([tree[name] for tree in trees if isinstance(tree, dict) and name in tree]) for name in names}
