"""A config as lines of Python that say the same: for people to read, and for `diff` to compare."""

from collections.abc import Iterator
from enum import Enum
from typing import Any, NamedTuple

from omegaconf import AnyNode, DictConfig, ListConfig

from treadle.config.nodes import TARGET, ConfigTuple, as_node, children, is_lazy, is_plain_mapping
from treadle.config.targets import target_name
from treadle.config.value_objects import as_call
from treadle.errors import ConfigError

_WIDTH = 100


def to_py(config: Any, prefix: str = "cfg.") -> str:
    """Return a config as Python assignments, one for each leaf; see `LazyConfig.to_py`."""
    return "".join(f"{line}\n" for line in _assignments(as_node(config), prefix))


def _assignments(node: Any, prefix: str) -> Iterator[str]:
    for key, child in children(node):
        named = isinstance(key, str) and key.isidentifier()
        name = f"{prefix}{key}" if named else f"{prefix.removesuffix('.')}[{key!r}]"
        if is_plain_mapping(child) and children(child):
            yield from _assignments(child, f"{name}.")
        else:
            start = f"{name} = "
            yield start + _render(child, indent=0, before=len(start))


class _Pieces(NamedTuple):
    """What a container is written as: its brackets, and its items with what stands before each."""

    opening: str
    items: list[tuple[str, Any]]
    closing: str


def _render(node: Any, *, indent: int, before: int) -> str:
    flat = _flat(node)
    pieces = _pieces(node)
    if pieces is None or not pieces.items or before + len(flat) <= _WIDTH:
        return flat
    inner = indent + 4
    lines = [
        f"{' ' * inner}{label}{_render(item, indent=inner, before=inner + len(label))},\n"
        for label, item in pieces.items
    ]
    return f"{pieces.opening}\n{''.join(lines)}{' ' * indent}{pieces.closing}"


def _flat(node: Any) -> str:
    pieces = _pieces(node)
    if pieces is None:
        return _leaf(node._value())
    items = [f"{label}{_flat(item)}" for label, item in pieces.items]
    comma = "," if isinstance(node, ConfigTuple) and len(items) == 1 else ""
    return f"{pieces.opening}{', '.join(items)}{comma}{pieces.closing}"


def _pieces(node: Any) -> _Pieces | None:
    if isinstance(node, AnyNode):
        call = _shown_call(node._value())
        return None if call is None else _call(call)
    if not isinstance(node, (DictConfig, ListConfig)) or not isinstance(node._content, (dict, list)):
        return None
    if is_lazy(node):
        return _call(node)
    if isinstance(node, DictConfig):
        return _Pieces("{", [(f"{key!r}: ", child) for key, child in children(node)], "}")
    brackets = "()" if isinstance(node, ConfigTuple) else "[]"
    return _Pieces(brackets[0], [("", child) for _, child in children(node)], brackets[1])


def _shown_call(value: Any) -> DictConfig | None:
    try:
        return as_call(value)
    except ConfigError:
        return None


def _call(node: DictConfig) -> _Pieces:
    entries = dict(children(node))
    target = entries.pop(TARGET)
    unnamed = [("", child) for _, child in children(entries.pop("_args_", None))]
    name = f"({_flat(target)})" if is_lazy(target) else _name(target._value())
    return _Pieces(f"{name}(", [*unnamed, *((f"{key}=", child) for key, child in entries.items())], ")")


def _leaf(value: Any) -> str:
    return _name(value) if callable(value) or isinstance(value, Enum) else repr(value)


def _name(value: Any) -> str:
    """Return the name of a class or function; of one in a config file, only the name it has there."""
    try:
        name = value if isinstance(value, str) else target_name(value)
    except ConfigError:
        return repr(value)
    return name.rpartition(":")[2]
