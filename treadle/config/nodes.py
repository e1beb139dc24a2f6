"""The tree that a config is: OmegaConf's containers, with tuples kept as tuples and unknown keys refused.

OmegaConf turns a tuple into a list where it is assigned, so the containers here put each value into a node
themselves. They also hold any object at all (a class, a dtype, a model), which OmegaConf allows only on request.
"""

import copy
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, TypeGuard

from omegaconf import AnyNode, DictConfig, ListConfig, Node, OmegaConf
from omegaconf.errors import ConfigAttributeError, MissingMandatoryValue, OmegaConfBaseException

from treadle.errors import ConfigError, did_you_mean

TARGET = "_target_"
_OBJECTS = {"allow_objects": True}
_SCALARS = (type(None), bool, int, float, str, bytes)


class ConfigDict(DictConfig):
    """A mapping in a config; its keys are attributes too.

    >>> train = ConfigDict({"betas": (0.9, 0.95), "evaluation": {"enabled": True, "period": 10}})
    >>> train.update(evaluation={"period": 5})
    >>> train.evaluation
    {'enabled': True, 'period': 5}

    Args:
        content: what it holds.
        file: the file it was read from, for messages.
    """

    def __init__(self, content: Mapping[Any, Any] | None = None, *, file: str | None = None) -> None:
        # The arguments of a call are checked against its signature, so a lazy call takes keys that are new to it.
        flags = {**_OBJECTS, "struct": False} if content and TARGET in content else _OBJECTS
        super().__init__(content=content or {}, flags=dict(flags))
        self.__dict__["_file"] = file

    def update(self, *others: Any, **changes: Any) -> None:
        """Change the given keys; a dict given for a dict changes only the keys that it names.

        Args:
            others: mappings, or sequences of pairs.
            changes: more keys.
        """
        for other in (*others, changes):
            given = as_node(other if isinstance(other, DictConfig) else dict(other))
            for key in given:
                self._change(key, given._get_node(key))

    def _change(self, key: Any, value: Node) -> None:
        current = self._get_node(key, validate_access=False)
        if is_plain_mapping(current) and is_plain_mapping(value):
            current.update(value)
        else:
            self[key] = value

    def __setattr__(self, key: str, value: Any) -> None:
        self._require_writable(key)
        super().__setattr__(key, value)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._require_writable(key)
        super().__setitem__(key, value)

    def __getattr__(self, key: str) -> Any:
        try:
            return super().__getattr__(key)
        except ConfigAttributeError as error:
            if key.startswith("__") or key in self.keys():
                raise
            raise ConfigAttributeError(f"{location(self)} has no key {key!r}{near_keys(self, key)}") from error

    def __eq__(self, other: object) -> bool:
        return super().__eq__(_comparable(other))

    __hash__ = DictConfig.__hash__

    def __deepcopy__(self, memo: dict[int, Any]) -> "ConfigDict":
        copied: ConfigDict = _retyped(super().__deepcopy__(memo), type(self))
        copied.__dict__["_file"] = self.__dict__["_file"]
        copied.__dict__["_overridden"] = self.__dict__.get("_overridden")
        return copied

    def _set_item_impl(self, key: Any, value: Any) -> None:
        super()._set_item_impl(key, as_node(value))

    def _require_writable(self, key: Any) -> None:
        if self._get_flag("readonly"):
            raise ConfigError(
                f"{location(self, key)}: the config is resolved and frozen; change it before LazyConfig.resolved()"
            )
        if self._get_flag("struct") and isinstance(self._content, dict) and key not in self._content:
            raise ConfigError(
                f"{location(self)} has no key {key!r}{near_keys(self, key)}; to add a key, assign it inside "
                "'with omegaconf.open_dict(...):'"
            )


class ConfigList(ListConfig):
    """A list in a config; a target receives it as a plain list.

    Args:
        content: its items.
    """

    def __init__(self, content: Iterable[Any] = ()) -> None:
        super().__init__(content=list(content), flags=dict(_OBJECTS))

    def insert(self, index: int, item: Any) -> None:
        """Put `item` before the one at `index`."""
        super().insert(index, as_node(item))

    def __add__(self, other: Any) -> "ConfigList":
        added = copy.deepcopy(self)
        added.extend(other)
        return added

    def __radd__(self, other: Any) -> "ConfigList":
        return type(self)(other) + self

    def __eq__(self, other: object) -> bool:
        return super().__eq__(_comparable(other))

    __hash__ = ListConfig.__hash__

    def __deepcopy__(self, memo: dict[int, Any]) -> "ConfigList":
        copied: ConfigList = _retyped(super().__deepcopy__(memo), type(self))
        return copied

    def _set_item_impl(self, key: Any, value: Any) -> None:
        super()._set_item_impl(key, as_node(value))


class ConfigTuple(ConfigList):
    """A tuple in a config; a target receives it as a plain tuple."""

    def __repr__(self) -> str:
        return repr(tuple(self._content)) if isinstance(self._content, list) else super().__repr__()


def as_node(value: Any) -> Any:
    """Return `value` in the containers of this module, all the way down; scalars as they are, objects in a node."""
    if isinstance(value, (ConfigDict, ConfigList)):
        return value
    if isinstance(value, (DictConfig, ListConfig)):
        return _converted(value)
    if type(value) in _CONTAINERS:
        return _CONTAINERS[type(value)](value)
    if type(value) in _SCALARS or isinstance(value, (Node, Path, Enum)):
        return value
    # OmegaConf would take a dataclass for the schema of a config.
    return AnyNode(value, flags=dict(_OBJECTS))


def _converted(value: DictConfig | ListConfig) -> Any:
    if not isinstance(value._content, (dict, list)):
        return value  # none, missing, or an interpolation
    nodes: Any = value._content
    return ConfigDict(nodes) if isinstance(value, DictConfig) else ConfigList(nodes)


_CONTAINERS: dict[type, Callable[[Any], Node]] = {dict: ConfigDict, list: ConfigList, tuple: ConfigTuple}


def _comparable(other: object) -> Any:
    # OmegaConf would compare with plain containers by a config of its own, which cannot hold every object.
    return as_node(other) if type(other) in _CONTAINERS else other


def _retyped(copied: Any, kind: type) -> Any:
    # OmegaConf names its own classes where it copies; attributes of a config are its keys, hence the detour.
    object.__setattr__(copied, "__class__", kind)
    return copied


def is_lazy(value: Any) -> TypeGuard[DictConfig]:
    """Return whether `value` is a mapping that stands for a call."""
    return isinstance(value, DictConfig) and isinstance(value._content, dict) and TARGET in value._content


def is_plain_mapping(value: Any) -> TypeGuard[DictConfig]:
    """Return whether `value` is a mapping of a config that stands for no call."""
    return isinstance(value, DictConfig) and isinstance(value._content, dict) and TARGET not in value._content


def children(node: Any) -> list[tuple[Any, Node]]:
    """Return the keys of a container and the nodes below them, interpolations unresolved."""
    content = node._content if isinstance(node, (DictConfig, ListConfig)) else None
    if isinstance(content, dict):
        return list(content.items())
    return list(enumerate(content)) if isinstance(content, list) else []


def lock(node: Any, *, above: bool = False) -> None:
    """Fix the keys of all mappings in a tree that stand for no call, so that a misspelt assignment fails."""
    if isinstance(node, DictConfig):
        fixed = not is_lazy(node)
        # None inherits: opening a mapping opens those below it.
        OmegaConf.set_struct(node, None if fixed and above else fixed)
        above = fixed
    for _, child in children(node):
        lock(child, above=above)


def location(node: Any, key: Any = None) -> str:
    """Return where in which config a node, or a key of it, stands: `optim.lr in configs/gpt.py`."""
    parent = node._get_parent()
    if key is None and parent is not None:
        path = parent._get_full_key(node._key())  # asked without a key, OmegaConf leaves out the brackets of an index
    else:
        path = node._get_full_key(key)
    root = node._get_root()
    file = root.__dict__.get("_file")
    if path and file:
        return f"{path} in {file}"
    return path or file or "the config"


def read(node: Any, key: Any) -> Any:
    """Return the value of a key, interpolations resolved.

    Raises:
        ConfigError: the value is still to be given, or what it refers to is not there.
    """
    try:
        return node[key]
    except MissingMandatoryValue as error:
        raise ConfigError(f"{location(node, key)} has no value yet ('???'); give it one") from error
    except OmegaConfBaseException as error:
        raise ConfigError(f"{location(node, key)}: {str(error).splitlines()[0]}") from error


def near_keys(node: DictConfig, key: Any) -> str:
    """Return which key of `node` may have been meant, or which it has."""
    names = [str(name) for name in node if name != TARGET]
    return did_you_mean(str(key), names) or (f"; it has {names}" if names else "; it is empty")
