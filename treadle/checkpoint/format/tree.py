"""State as a tree of plain data and tensors, taken apart into JSON and named tensors, and put together again."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from treadle.checkpoint.format.shards import PartFile, Piece, SavedTensor
from treadle.errors import CheckpointError

KIND = "__kind__"
NESTED = {dict, list}
"""What JSON nests; a list without any is read at a glance."""
PLAIN = frozenset({bool, int, str, type(None)})


def split(tree: Any) -> tuple[Any, dict[str, Tensor]]:
    """Take `tree` apart: what JSON can hold, and the tensors by name.

    A tensor that stands in several places is kept once.

    >>> split({"a": torch.zeros(2)})[0]
    {'a': {'__kind__': 'tensor', 'name': 'a', 'shape': [2], 'dtype': 'float32'}}

    Raises:
        CheckpointError: Something in the tree is neither plain data nor a tensor; its place is named.
    """
    return _Splitter().run(tree)


class _Splitter:
    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._names: dict[tuple[Any, ...], str] = {}
        self._elsewhere: set[str] = set()

    def run(self, tree: Any) -> tuple[Any, dict[str, Tensor]]:
        return self._encode(tree, ()), self.tensors

    def _encode(self, value: Any, path: tuple[str, ...]) -> Any:
        if isinstance(value, Tensor):
            shape, dtype = list(value.shape), _dtype_name(value.dtype)
            return {KIND: "tensor", "name": self._keep(value, path), "shape": shape, "dtype": dtype}
        if isinstance(value, Piece):
            name = self._keep(value.tensor, path) if value.written else None
            return {KIND: "piece", "name": name, "shape": list(value.shape), "offset": list(value.offset)}
        if value is None or isinstance(value, (bool, str)):
            return value
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, int):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {KIND: "float", "value": str(value)}
        if isinstance(value, (list, tuple)):
            items = list(value)
            if not all_plain(items):
                items = [self._encode(item, (*path, str(place))) for place, item in enumerate(items)]
            return items if isinstance(value, list) else {KIND: "tuple", "items": items}
        if isinstance(value, dict):
            return self._encode_dict(value, path)
        raise CheckpointError(
            f"{'.'.join(path) or 'the state'} is a {type(value).__name__}, which a checkpoint cannot hold; "
            "return tensors, numbers, strings, lists, tuples and dicts from state_dict"
        )

    def _encode_dict(self, value: dict[Any, Any], path: tuple[str, ...]) -> Any:
        pairs = []
        for key, item in value.items():
            pairs.append((key, item if type(item) in PLAIN else self._encode(item, (*path, str(key)))))
        kinds = set(map(type, value))
        if KIND not in value and (kinds <= {str} or all(issubclass(kind, str) for kind in kinds)):
            return dict(pairs)
        return {KIND: "dict", "items": [[self._encode(key, path), item] for key, item in pairs]}

    def _keep(self, tensor: Tensor, path: tuple[str, ...]) -> str:
        tensor = tensor.detach()
        if tensor.layout is not torch.strided:
            raise CheckpointError(f"{'.'.join(path)} is a {tensor.layout} tensor; make it dense in state_dict")
        view = (tensor.is_conj(), tensor.is_neg())
        identity = (tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride(), view)
        name = base = _usual_name(path)
        if tensor.numel() and identity in self._names and base not in self.tensors:
            self._elsewhere.add(base)
            return self._names[identity]
        suffix = 1
        while name in self.tensors or name in self._elsewhere:
            suffix += 1
            name = f"{base}#{suffix}"
        self.tensors[name] = tensor
        self._names[identity] = name
        return name


def all_plain(values: Sequence[Any]) -> bool:
    """Whether all of `values` are what JSON holds as it is; a history of thousands of numbers is told at a glance.

    >>> all_plain([1, "a", None]), all_plain([0.5, float("nan")]), all_plain([[1]])
    (True, False, False)
    """
    kinds = set(map(type, values))
    return kinds <= PLAIN or (kinds == {float} and all(map(math.isfinite, values)))


def join(structure: Any, tensors: "dict[str, Tensor] | LazyTensors") -> Any:
    """Put together again what `split` took apart.

    Raises:
        CheckpointError: Structure and tensors do not belong together, or there is a kind that does not exist.
    """
    joiner = _Joiner(tensors)
    tree = joiner.decode(structure, ())
    unused = sorted(set(joiner.names) - joiner.used)
    if unused:
        raise CheckpointError(f"the checkpoint is damaged: nothing in its state refers to the tensor {unused[0]!r}")
    return tree


class _Joiner:
    def __init__(self, tensors: "dict[str, Tensor] | LazyTensors") -> None:
        self._tensors = tensors
        self.names = frozenset(tensors.names() if isinstance(tensors, LazyTensors) else tensors)
        self.used: set[str] = set()

    def decode(self, structure: Any, path: tuple[str, ...]) -> Any:
        if isinstance(structure, list):
            if NESTED.isdisjoint(map(type, structure)):
                return structure.copy()
            return self._items(structure, path)
        if not isinstance(structure, dict):
            return structure
        kind = structure.get(KIND)
        if kind is None:
            return {key: self.decode(item, (*path, key)) for key, item in structure.items()}
        try:
            if kind == "tensor":
                return self._tensor(structure, path)
            if kind == "piece":
                return self._piece(structure, path)
            if kind == "tuple":
                return tuple(self._items(structure["items"], path))
            if kind == "dict":
                pairs = [(self.decode(key, path), item) for key, item in structure["items"]]
                return {key: self.decode(item, (*path, str(key))) for key, item in pairs}
            if kind == "float":
                return float(structure["value"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"the checkpoint is damaged: a {kind!r} entry lacks {error}") from error
        raise CheckpointError(f"the checkpoint holds an entry of unknown kind {kind!r}; it may be from a newer Treadle")

    def _items(self, items: list[Any], path: tuple[str, ...]) -> list[Any]:
        return [self.decode(item, (*path, str(place))) for place, item in enumerate(items)]

    def _tensor(self, entry: dict[str, Any], path: tuple[str, ...]) -> Any:
        found = self._tensors[self._claimed(entry["name"], path)]
        expected = (tuple(entry.get("shape", found.shape)), entry.get("dtype"))
        dtype = _dtype_name(found.dtype) if isinstance(found, Tensor) else expected[1]
        if expected not in ((tuple(found.shape), dtype), (tuple(found.shape), None)):
            raise CheckpointError(
                f"the checkpoint is damaged: {'.'.join(path)} is a {dtype} tensor of {tuple(found.shape)} where "
                f"{expected[1]} of {expected[0]} was saved"
            )
        return found

    def _piece(self, entry: dict[str, Any], path: tuple[str, ...]) -> Any:
        if not isinstance(self._tensors, LazyTensors):
            # A file of one rank alone, whose state has nothing of the others'.
            raise CheckpointError(
                "the checkpoint holds pieces of tensors that other ranks wrote; read it by its folder"
            )
        name = None if entry["name"] is None else self._claimed(entry["name"], path)
        return self._tensors.piece(name, entry["shape"], entry["offset"])

    def _claimed(self, name: Any, path: tuple[str, ...]) -> str:
        """Take note that a tensor is used at a place, and refuse one where the place has another of its own."""
        usual = _usual_name(path)
        if name not in self.names:
            raise KeyError(name)
        if usual in self.names and name.partition("#")[0] != usual.partition("#")[0]:
            raise CheckpointError(f"the checkpoint is damaged: {usual} refers to the tensor of {name}")
        self.used.add(name)
        return str(name)


def _usual_name(path: tuple[str, ...]) -> str:
    """Return the name of the tensor at a place, if that has one of its own."""
    return ".".join(path).replace("__metadata__", "metadata") or "tensor"


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class LazyTensors:
    """The tensors of one rank's part of a checkpoint, by name, none of them read yet."""

    def __init__(self, file: PartFile) -> None:
        self.file = file

    def names(self) -> list[str]:
        """Return the names of all tensors in the file."""
        return self.file.names()

    def __getitem__(self, name: str) -> SavedTensor:
        shape = self.file.shape_of(name)
        return self.piece(name, shape, (0,) * len(shape))

    def piece(self, name: str | None, shape: Sequence[int], offset: Sequence[int]) -> SavedTensor:
        """Return a tensor of `shape` of which the one called `name` is the part at `offset`; None adds no part."""
        saved = SavedTensor(shape, name or "a tensor")
        if name is not None:
            saved.add(offset, self.file.shape_of(name), self.file.slicer(name))
        return saved
