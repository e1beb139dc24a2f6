"""Files of `torch.save` that hold objects of classes: read as data, without running or importing anything.

Torch's own restricted reader refuses a file as soon as it meets an object of an unknown class, and pickles of
protocol 4 altogether. Here the instructions of the pickle are carried out by a machine that knows plain data and
tensors; every class and function that it meets stays a name. An object becomes a `Record` of its class's name,
arguments and attributes; a file that calls anything but a name is refused.
"""

import os
import pickletools
import re
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from treadle.checkpoint.format.size_checks import Budget, check_archive
from treadle.errors import CheckpointError

_MARK = object()
STORAGES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "ComplexFloatStorage": torch.complex64,
    "ComplexDoubleStorage": torch.complex128,
    "UntypedStorage": torch.uint8,
}
DTYPES = {str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)}


@dataclass(frozen=True)
class Name:
    """The name of a class or function in a pickle; it is not looked up."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(eq=False)
class Record:
    """An object in a pickle that is no plain data: what it was made of.

    Attributes:
        kind: The name of its class, or of the function that makes it.
        arguments: What that would be called with.
        state: Its attributes, or what else it would be filled with.
        items: What would be appended to it, where it is a list.
        entries: What would be put into it by key, where it is a mapping.
    """

    kind: str
    arguments: tuple[Any, ...] = ()
    state: Any = None
    items: list[Any] = field(default_factory=list)
    entries: dict[Any, Any] = field(default_factory=dict)


def read_torch_file(path: str | os.PathLike[str]) -> Any:
    """Return what `torch.save` wrote to a file, with a `Record` for every object that is no plain data or tensor.

    Nothing in the file is run, and no class that it names is imported.

    Raises:
        CheckpointError: The file is not there, damaged, or of a form that torch has not written since 1.6.
    """
    return read_with_names(path)[0]


def read_with_names(path: str | os.PathLike[str]) -> tuple[Any, list[str]]:
    """Return what `read_torch_file` does, and the names in the file that stand for neither plain data nor tensors.

    Raises:
        CheckpointError: As there.
    """
    target = Path(path)
    if not target.is_file():
        raise CheckpointError(f"there is no file {target} to import weights from")
    try:
        with zipfile.ZipFile(target) as archive:
            check_archive(archive, target.stat().st_size)
            machine = _Machine(_Storages(archive, Budget(target.stat().st_size)))
            found = machine.run(archive.read(_pickle_in(archive, target)))
            return found, sorted(machine.names - BUILDERS.keys() - STORAGE_NAMES - DTYPES.keys())
    except _CallsUnnamedError as error:
        raise CheckpointError(f"{target} holds no weights that can be read without running code: {error}") from error
    except zipfile.BadZipFile as error:
        raise CheckpointError(f"{target} is no file of torch.save, or damaged: {error}") from error
    except CheckpointError as error:
        raise error if str(target) in str(error) else CheckpointError(f"{target} cannot be read: {error}") from error
    except Exception as error:  # instructions that nobody wrote in good faith may fail by anything
        reason = str(error) or type(error).__name__
        raise CheckpointError(f"{target} is damaged: {reason}") from error


def bytes_claimed(path: Path) -> int:
    """Return how many bytes of tensors a file says it holds that torch wrote before 1.6; none is taken for them.

    Raises:
        Exception: The file is damaged, or none of these.
    """
    with path.open("rb") as file:
        for _ in range(3):  # a number that says what it is, the version, and the machine it was written on
            for _ in pickletools.genops(file):
                pass
        claims = _Claims()
        _Machine(claims).run(file)
    return claims.total


class _Claims:
    """What stands for the numbers of tensors where only their size is asked."""

    def __init__(self) -> None:
        self._known: dict[Any, Tensor] = {}

    @property
    def total(self) -> int:
        """Bytes of all that was asked for."""
        return sum(one.nbytes for one in self._known.values())

    def find(self, identity: Any) -> Tensor:
        """Return something of the size that an entry of the pickle says."""
        word, kind, key, _, count, *_ = identity
        if word != "storage" or not isinstance(kind, Name) or kind.name not in STORAGES or type(count) is not int:
            raise ValueError(f"{kind} holds no numbers that can be read")
        if key not in self._known or len(self._known[key]) < count:
            self._known[key] = torch.empty(count, dtype=STORAGES[kind.name], device="meta")
        return self._known[key]

    def own(self, tensor: Tensor) -> Tensor:
        """Return a tensor as it is: it has no memory."""
        return tensor


class _CallsUnnamedError(Exception):
    """A pickle calls something that is no name, such as what another call would return."""


def _pickle_in(archive: zipfile.ZipFile, target: Path) -> str:
    for name in archive.namelist():
        if name == "data.pkl" or name.endswith("/data.pkl"):
            return name
    raise CheckpointError(f"{target} is an archive without data.pkl, which torch.save writes")


class _Storages:
    """The numbers of tensors in an archive, each read once."""

    def __init__(self, archive: zipfile.ZipFile, budget: Budget) -> None:
        self._archive = archive
        self._budget = budget
        self._known: dict[str, Tensor] = {}
        self._root = next(
            (name.removesuffix("data.pkl") for name in archive.namelist() if name.endswith("data.pkl")), ""
        )
        order = f"{self._root}byteorder"
        if order in archive.namelist() and archive.read(order) != b"little":
            raise CheckpointError("the file was written on a machine with another order of bytes")

    def find(self, identity: Any) -> Tensor:
        """Return the numbers that an entry of the pickle stands for, flat."""
        word, kind, key, _, count = identity
        if word != "storage" or not isinstance(kind, Name) or kind.name not in STORAGES:
            raise ValueError(f"{kind} holds no numbers that can be read")
        if key not in self._known:
            data = bytearray(self._archive.read(f"{self._root}data/{key}"))
            dtype = STORAGES[kind.name]
            self._known[key] = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
        if len(self._known[key]) < count:
            raise ValueError(f"tensor {key} has {len(self._known[key])} numbers of {count}")
        return self._known[key]

    def own(self, tensor: Tensor) -> Tensor:
        """Return a tensor with memory of its own: of a part of a large one nothing else is kept.

        Raises:
            CheckpointError: All that was made would be more than the file can stand for.
        """
        if tensor.layout is not torch.strided or tensor.nbytes == tensor.untyped_storage().nbytes():
            return tensor
        self._budget.spend(tensor.nbytes)
        return tensor.clone()


def _tensor(storage: Tensor, offset: int, size: Any, stride: Any, *_: Any) -> Tensor:
    return storage.as_strided(tuple(size), tuple(stride), offset)


def _typed_tensor(storage: Tensor, offset: int, size: Any, stride: Any, _: Any, __: Any, dtype: Any, *rest: Any) -> Any:
    """Return a tensor of a type that has no storage of its own, such as 8-bit floats."""
    if str(dtype) not in DTYPES:
        raise ValueError(f"{dtype} is no type of tensors")
    return _tensor(storage.view(DTYPES[str(dtype)]), offset, size, stride)


def _first(value: Any, *_: Any) -> Any:
    return value


def _sparse(layout: Any, data: Any) -> Any:
    if str(layout) != "torch.sparse_coo" or len(data) < 3:
        return Record("torch._utils._rebuild_sparse_tensor", (layout, data))
    return torch.sparse_coo_tensor(data[0], data[1], tuple(data[2]), check_invariants=True).coalesce()


def _bytes(text: str, encoding: str) -> Any:
    if encoding != "latin1":
        raise ValueError(f"bytes are written as {encoding}")
    return text.encode("latin1")


def _number(kind: Any, raw: Any = b"") -> Any:
    """Return a scalar of NumPy as a plain number."""
    name = str(kind.arguments[0]) if isinstance(kind, Record) and kind.arguments else ""
    if not re.fullmatch(r"[fiu][1248]", name) or not isinstance(raw, bytes):
        return Record("numpy scalar", (kind, raw))
    return np.frombuffer(raw, dtype=f"<{name}")[0].item()


BUILDERS: dict[str, Callable[..., Any]] = {
    "_codecs.encode": _bytes,
    "numpy.core.multiarray.scalar": _number,
    "numpy._core.multiarray.scalar": _number,
    "collections.OrderedDict": lambda pairs=(): dict(pairs),
    "collections.defaultdict": lambda *_: {},
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _typed_tensor,
    "torch._utils._rebuild_parameter": _first,
    "torch._utils._rebuild_parameter_with_state": _first,
    "torch._utils._rebuild_sparse_tensor": _sparse,
    "torch.serialization._get_layout": lambda name: Name(*str(name).split(".", 1)),
    "torch.Size": tuple,
    "builtins.set": set,
    "__builtin__.set": set,
    "builtins.frozenset": frozenset,
    "__builtin__.frozenset": frozenset,
    "torch.device": lambda *parts: torch.device(*parts),
}
"""The functions and classes that are plain data in the end, and what stands for them."""
STORAGE_NAMES = frozenset({f"{module}.{name}" for module in ("torch", "torch.storage") for name in STORAGES})


class _Machine:
    """Carries out the instructions of a pickle, as far as they make data."""

    def __init__(self, storages: "_Storages | _Claims") -> None:
        self._storages = storages
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self.names: set[str] = set()

    def run(self, data: Any) -> Any:
        """Return what the pickle holds."""
        for opcode, argument, _ in pickletools.genops(data):
            name = opcode.name
            if name == "STOP":
                return self._stack.pop()
            if name in CONSTANTS:
                self._stack.append(CONSTANTS[name]())
            elif name in LITERALS:
                self._stack.append(argument)
            elif name not in IGNORED:
                verb = getattr(self, f"_{name.lower()}", None)
                if verb is None:
                    raise ValueError(f"the instruction {name} is none that torch.save writes")
                verb(argument)
        raise ValueError("the pickle has no end")

    def _since_mark(self) -> list[Any]:
        place = max(index for index, value in enumerate(self._stack) if value is _MARK)
        taken = self._stack[place + 1 :]
        del self._stack[place:]
        return taken

    # Containers ---------------------------------------------------------------------------------------------

    def _tuple(self, _: Any) -> None:
        self._stack.append(tuple(self._since_mark()))

    def _tuple1(self, _: Any) -> None:
        self._take(1)

    def _tuple2(self, _: Any) -> None:
        self._take(2)

    def _tuple3(self, _: Any) -> None:
        self._take(3)

    def _take(self, count: int) -> None:
        self._stack[-count:] = [tuple(self._stack[-count:])]

    def _list(self, _: Any) -> None:
        self._stack.append(self._since_mark())

    def _dict(self, _: Any) -> None:
        self._stack.append(_pairs(self._since_mark()))

    def _frozenset(self, _: Any) -> None:
        self._stack.append(frozenset(self._since_mark()))

    def _append(self, _: Any) -> None:
        self._extend([self._stack.pop()])

    def _appends(self, _: Any) -> None:
        self._extend(self._since_mark())

    def _extend(self, values: list[Any]) -> None:
        target = self._stack[-1]
        (target.items if isinstance(target, Record) else target).extend(values)

    def _setitem(self, _: Any) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._set({key: value})

    def _setitems(self, _: Any) -> None:
        self._set(_pairs(self._since_mark()))

    def _set(self, pairs: dict[Any, Any]) -> None:
        target = self._stack[-1]
        (target.entries if isinstance(target, Record) else target).update(pairs)

    def _additems(self, _: Any) -> None:
        values = self._since_mark()
        self._stack[-1].update(values)

    # Memory -------------------------------------------------------------------------------------------------

    def _put(self, place: Any) -> None:
        self._memo[int(place)] = self._stack[-1]

    _binput = _long_binput = _put

    def _memoize(self, _: Any) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def _get(self, place: Any) -> None:
        self._stack.append(self._memo[int(place)])

    _binget = _long_binget = _get

    def _pop(self, _: Any) -> None:
        self._stack.pop()

    def _dup(self, _: Any) -> None:
        self._stack.append(self._stack[-1])

    # Objects ------------------------------------------------------------------------------------------------

    def _global(self, argument: Any) -> None:
        self._name(*str(argument).split(" ", 1))

    def _stack_global(self, _: Any) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        self._name(str(module), str(name))

    def _name(self, module: str, name: str) -> None:
        found = Name(module, name)
        self.names.add(str(found))
        self._stack.append(found)

    def _reduce(self, _: Any) -> None:
        arguments, function = self._stack.pop(), self._stack.pop()
        made = _made(function, arguments)
        self._stack.append(self._storages.own(made) if isinstance(made, Tensor) else made)

    _newobj = _reduce

    def _newobj_ex(self, _: Any) -> None:
        keywords, arguments, kind = self._stack.pop(), self._stack.pop(), self._stack.pop()
        self._stack.append(_made(kind, (*arguments, keywords) if keywords else arguments))

    def _build(self, _: Any) -> None:
        state = self._stack.pop()
        if isinstance(self._stack[-1], Record):
            self._stack[-1].state = state

    def _binpersid(self, _: Any) -> None:
        self._stack.append(self._storages.find(self._stack.pop()))


def _made(function: Any, arguments: Any) -> Any:
    if not isinstance(function, Name):
        raise _CallsUnnamedError("it calls what another call would return")
    builder = BUILDERS.get(str(function))
    return Record(str(function), tuple(arguments)) if builder is None else builder(*arguments)


def _pairs(flat: list[Any]) -> dict[Any, Any]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_TUPLE": tuple,
    "EMPTY_SET": set,
    "MARK": lambda: _MARK,
}
LITERALS = frozenset(
    {
        "INT",
        "BININT",
        "BININT1",
        "BININT2",
        "LONG",
        "LONG1",
        "LONG4",
        "FLOAT",
        "BINFLOAT",
        "STRING",
        "BINSTRING",
        "SHORT_BINSTRING",
        "BINBYTES",
        "SHORT_BINBYTES",
        "BINBYTES8",
        "BYTEARRAY8",
        "UNICODE",
        "SHORT_BINUNICODE",
        "BINUNICODE",
        "BINUNICODE8",
    }
)
IGNORED = frozenset({"PROTO", "FRAME"})
