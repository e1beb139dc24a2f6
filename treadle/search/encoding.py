"""Arguments as JSON: plain data as it is, everything else by the name it is found under or the call that makes it.

Reading such data back imports what it names and makes the calls it describes; nothing is ever unpickled.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from pathlib import Path, PurePath
from typing import Any

import torch

from treadle.errors import ConfigError

# Names in recorded data, and what they stand for when it is read


class RecordedNames:
    """From a name to what it stands for, under the rules of one load.

    Args:
        renamed: New names for old ones: a whole name, or the beginning of one up to a dot.
        allow: Beginnings of the names that may be imported, such as `("mine", "torch")`; None allows all.
        make: How an object is made from its record.
    """

    def __init__(
        self,
        renamed: Mapping[str, str] | None = None,
        allow: Sequence[str] | None = None,
        *,
        make: Callable[[Any, "RecordedNames"], Any],
    ) -> None:
        self.renamed = dict(renamed or {})
        self.allow = allow
        self.make = make

    def find(self, name: str) -> Any:
        """Return what `name` stands for.

        Raises:
            ConfigError: It is not there any more, or may not be imported.
        """
        from treadle.config import locate
        from treadle.config.targets import begins, stays_within

        name = self.present(name)
        # A name counts by what it leads to: torch.os.system is none of torch.
        if self.allow is not None and not any(begins(name, one) and stays_within(name, one) for one in self.allow):
            raise ConfigError(f"{name!r} may not be imported: only {list(self.allow)} may")
        try:
            return locate(name)
        except ConfigError as error:
            raise ConfigError(f"{error}; if it has moved, give its new place: renamed={{{name!r}: '...'}}") from error

    def present(self, name: str) -> str:
        """Return the name that an old name has now."""
        for old, new in self.renamed.items():
            if name == old or name.startswith((f"{old}.", f"{old}:")):
                return new + name[len(old) :]
        return name


RECORD = "_treadle_record"
"""The attribute under which an object keeps the call that made it."""


def encode(value: Any, where: str) -> Any:
    """Return an argument as JSON.

    >>> encode((1, Path("data")), "argument 'x'")
    {'$tuple': [1, {'$path': 'data'}]}

    Args:
        value: The argument.
        where: Where it stands, for messages.

    Raises:
        ConfigError: It cannot be made again from plain data; the message says where it stands and what to do.
    """
    if value is None or (isinstance(value, (bool, int, str)) and not isinstance(value, Enum)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": repr(float(value))}
    # Of a subclass of these nobody knows what makes it: it is asked for a call, like any object.
    write = _WRITERS.get(type(value), _encode_object)
    return write(value, where)


def _encode_object(value: Any, where: str) -> Any:
    if type(value).__module__ == "numpy" and hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        return encode(value.item(), where)
    if isinstance(value, PurePath):
        return {"$path": value.as_posix()}
    if RECORD in getattr(value, "__dict__", {}):
        return {"$made": vars(value)[RECORD].encoded()}
    if _is_config(value):
        return {"$lazy": encode(_plain_config(value), where)}
    return _encode_named(value, where)


def _encode_named(value: Any, where: str) -> Any:
    from treadle.config.targets import target_name

    if not (callable(value) or isinstance(value, (Enum, torch.dtype))) or isinstance(value, torch.nn.Module):
        raise ConfigError(f"{where} is a {_title(value)}, which cannot be made again in another process; {REMEDY}")
    try:
        return {"$name": target_name(value)}
    except ConfigError as error:
        raise ConfigError(f"{where} cannot be found again by another process: {error}") from error


REMEDY = (
    "pass plain data, a LazyCall that makes it (LazyCall(TensorDataset)(...)), or decorate its class with @nas.recorded"
)


def _title(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _is_config(value: Any) -> bool:
    # Whoever has not loaded OmegaConf has no config either.
    return any(kind.__module__.startswith("omegaconf.") for kind in type(value).__mro__)


def _plain_config(value: Any) -> Any:
    """Return a config as plain data with every interpolation resolved, targets by name."""
    from omegaconf import OmegaConf

    from treadle.config.files import plain
    from treadle.config.nodes import as_node

    holder = as_node({"value": as_node(value)})
    OmegaConf.resolve(holder)
    return plain(holder)["value"]


def _encode_dict(value: Mapping[Any, Any], where: str) -> Any:
    if all(isinstance(key, str) for key in value) and not any(key.startswith("$") for key in value):
        return {key: encode(item, f"{where}[{key!r}]") for key, item in value.items()}
    pairs = [[encode(key, f"{where}, a key"), encode(item, f"{where}[{key!r}]")] for key, item in value.items()]
    return {"$items": pairs}


def _encode_list(value: Any, where: str) -> list[Any]:
    return [encode(item, f"{where}[{place}]") for place, item in enumerate(value)]


def _encode_set(value: Any, where: str) -> Any:
    # In one order whatever the hashes are, so that the same set is the same text.
    members = [encode(item, f"{where}, a member") for item in value]
    return {f"${type(value).__name__}": sorted(members, key=lambda item: json.dumps(item, sort_keys=True))}


def _encode_tuple(value: Any, where: str) -> Any:
    return {"$tuple": _encode_list(value, where)}


def _encode_partial(value: Any, where: str) -> Any:
    return {
        "$partial": encode(value.func, f"{where}, the function"),
        "args": _encode_list(value.args, where),
        "kwargs": {name: encode(item, f"{where}, {name!r}") for name, item in value.keywords.items()},
    }


_WRITERS: dict[type, Callable[[Any, str], Any]] = {
    dict: _encode_dict,
    list: _encode_list,
    tuple: _encode_tuple,
    torch.Size: _encode_tuple,
    set: _encode_set,
    frozenset: _encode_set,
    torch.device: lambda value, where: {"$device": str(value)},
    partial: _encode_partial,
}


def decode(data: Any, names: RecordedNames) -> Any:
    """Return what `encode` wrote, made anew.

    Raises:
        ConfigError: Something in it is not there any more, or it is no such data.
    """
    if isinstance(data, list):
        return [decode(item, names) for item in data]
    if not isinstance(data, dict):
        return data
    tag = next((key for key in data if key.startswith("$")), None)
    if tag is None:
        return {key: decode(item, names) for key, item in data.items()}
    if tag not in _READERS:
        raise ConfigError(f"{tag!r} is no kind of value that this version of Treadle knows; it knows {list(_READERS)}")
    return _READERS[tag](data, names)


def build(value: Any) -> Any:
    """Return `value` with the lazy calls in it made, inside lists, tuples and dicts too."""
    if _is_config(value):
        from treadle.config import instantiate

        return instantiate(value)
    if type(value) in (list, tuple):
        return type(value)(build(item) for item in value)
    if type(value) is dict:
        return {key: build(item) for key, item in value.items()}
    return value


def _read_lazy(data: Any, names: RecordedNames) -> Any:
    from treadle.config.nodes import as_node

    tree = decode(data["$lazy"], names)
    _check_targets(tree, names)
    return as_node(tree)


def _check_targets(tree: Any, names: RecordedNames) -> None:
    """Look every target of a lazy call up under the rules of this load; the tree gets the present names."""
    for key, item in tree.items() if isinstance(tree, dict) else enumerate(tree):
        if key in ("_target_", "name") and isinstance(item, str) and "_target_" in tree:
            if key == "_target_" or tree["_target_"] == "treadle.config.locate":
                names.find(item)
                tree[key] = names.present(item)
        elif isinstance(item, (dict, list, tuple)):
            _check_targets(item, names)


def _read_partial(data: Any, names: RecordedNames) -> Any:
    arguments = {name: decode(item, names) for name, item in data["kwargs"].items()}
    return partial(decode(data["$partial"], names), *(decode(item, names) for item in data["args"]), **arguments)


_READERS: dict[str, Callable[[Any, RecordedNames], Any]] = {
    "$float": lambda data, names: float(data["$float"]),
    "$tuple": lambda data, names: tuple(decode(item, names) for item in data["$tuple"]),
    "$set": lambda data, names: {decode(item, names) for item in data["$set"]},
    "$frozenset": lambda data, names: frozenset(decode(item, names) for item in data["$frozenset"]),
    "$items": lambda data, names: {decode(key, names): decode(item, names) for key, item in data["$items"]},
    "$path": lambda data, names: Path(data["$path"]),
    "$device": lambda data, names: torch.device(data["$device"]),
    "$name": lambda data, names: names.find(data["$name"]),
    "$partial": _read_partial,
    "$lazy": _read_lazy,
    "$made": lambda data, names: names.make(data["$made"], names),
}
