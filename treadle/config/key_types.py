"""What the keys of the packaged configs may hold, and which keys there are: found out from the files themselves."""

import math
import types
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import as_file, files
from numbers import Integral, Real
from os import PathLike
from pathlib import PurePosixPath
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from omegaconf import DictConfig, ListConfig, Node

from treadle.config.lazy_config import LazyCall
from treadle.config.nodes import TARGET, as_node, children, is_lazy, is_plain_mapping, read
from treadle.config.python_files import run_file
from treadle.config.truth import parse_bool
from treadle.errors import ConfigError, did_you_mean


class Key(NamedTuple):
    """What one key may hold.

    Attributes:
        kind: a type, or a union of types.
        least: the least that a number may be; None if that is left to others.
    """

    kind: Any
    least: int | None = None


Keys = Mapping[str, Any]
"""Each key with its `Key`, or with `Keys` if it holds keys itself."""

_WORDS: dict[Any, str] = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "text",
    PathLike: "a path",
    dict: "a mapping",
    list: "a list",
    LazyCall: "a LazyCall",
    type(None): "None",
}
_ITEMS = {str: "texts", int: "whole numbers"}
_SCALARS = (bool, int, float, str, bytes, type(None))
_UNFIT = object()


@cache
def packaged_keys(file: str, section: str) -> Keys:
    """Return what the keys of a section of a packaged config may hold.

    A key holds what its default is an instance of; the table `_types` of the file has those whose default is None, or
    that take more, and `_least` the least that a number may be.

    >>> packaged_keys("common/train.py", "train")["amp"]["enabled"]
    Key(kind=<class 'bool'>, least=None)

    Args:
        file: the name of the config, as for `get_config`.
        section: the name in it.
    """
    with as_file(files("treadle.config") / "configs") as folder:
        module = vars(run_file(folder / PurePosixPath(file)))
    return _typed_keys(as_node(module[section]), module["_types"], module.get("_least", {}), "")


def _typed_keys(node: Any, kinds: Mapping[str, Any], least: Mapping[str, int], above: str) -> Keys:
    found: dict[str, Any] = {}
    for key, child in children(node):
        path = f"{above}{key}"
        if is_plain_mapping(child):
            found[key] = _typed_keys(child, kinds, least, f"{path}.")
        else:
            default = LazyCall if is_lazy(child) else type(child._value())
            found[key] = Key(kinds.get(path, default), least.get(path))
    return found


def check_section(config: DictConfig, section: str, known: Keys | Key) -> list[str]:
    """Check the keys of a section and their values, at every level; texts such as `off` become truth values in place.

    Args:
        config: the whole config.
        section: the key of it to look at.
        known: what the keys of the section may hold, or the section itself if it has none.

    Returns:
        The keys that are not known and resemble none, in full.

    Raises:
        ConfigError: a value is none that its key takes, or a key is nearly one that is known, or one of another place.
    """
    below = known if isinstance(known, Mapping) else {}
    elsewhere = {name.rpartition(".")[2]: name for name in _paths(below, f"{section}.")}
    return list(_checked(config, config, section, known, section, elsewhere))


def _checked(
    config: DictConfig, holder: Any, key: str, known: Any, path: str, elsewhere: Mapping[str, str]
) -> Iterator[str]:
    """Check what `key` of `holder` is, and what is below it; yield the keys that nobody knows."""
    node = holder._get_node(key)
    if not isinstance(known, Mapping):
        _check_value(config, holder, key, known, path)
        return
    if not isinstance(node, DictConfig) or node._is_none() or node._is_missing():
        value = None if not isinstance(node, Node) else node._value()
        if value == "???" or (isinstance(node, Node) and node._is_interpolation()):
            return
        raise ConfigError(f"{path}={value!r}{origin(config, path)} {_no_group(path, value, known)}")
    for name, _ in children(node):
        below = f"{path}.{name}"
        if name in known:
            yield from _checked(config, node, name, known[name], below, elsewhere)
        elif name != TARGET:
            _refuse_near(config, str(name), known, below, elsewhere)
            yield below


def _no_group(path: str, value: Any, known: Keys) -> str:
    if "enabled" in known and isinstance(parse_bool(value), bool):
        return f"is no value: {path} holds settings; write {path}.enabled={parse_bool(value)}"
    return f"must be a mapping with some of {list(known)}"


def _refuse_near(config: DictConfig, name: str, known: Keys, path: str, elsewhere: Mapping[str, str]) -> None:
    # A name of one word, such as `stage`, may well be somebody's own; `eval_period` is a key in the wrong place.
    if "_" in name and name in elsewhere:
        raise ConfigError(f"unknown key {path!r}{origin(config, path)}; did you mean {elsewhere[name]!r}?")
    near = did_you_mean(name, known)
    if near:
        nearest = next(key for key in known if repr(key) in near)
        raise ConfigError(
            f"unknown key {path!r}{origin(config, path)}; did you mean {path.removesuffix(name) + nearest!r}?"
        )


def _check_value(config: DictConfig, holder: Any, key: str, known: Key, path: str) -> None:
    node = holder._get_node(key)
    indirect = node._is_interpolation()
    if node._is_missing():
        return
    if indirect:
        try:
            value = read(holder, key)
        except ConfigError:
            return  # whoever reads it says so
        if value is None:
            return  # what it refers to may still be worked out
    else:
        value = node if isinstance(node, (DictConfig, ListConfig)) and not node._is_none() else node._value()
    fitting = _fitting(value, known.kind)
    low = known.least is not None and isinstance(fitting, Real) and fitting < known.least
    if fitting is _UNFIT or low:
        least = f" from {known.least} up" if low else ""
        raise ConfigError(f"{path}={value!r}{origin(config, path)} must be {_described(known.kind)}{least}")
    if fitting is not value:
        holder[key] = fitting


def _fitting(value: Any, kind: Any) -> Any:
    """Return the value as one of its type, or `_UNFIT`; `off` is False, and 1e4 a whole number."""
    if type(value).__module__ == "numpy" and hasattr(value, "item"):
        value = value.item()
    kinds = _members(kind)
    if bool in kinds:
        truth = bool(value) if type(value) is int and value in (0, 1) else parse_bool(value)
        value = truth if isinstance(truth, bool) else value
    if any(_is(value, one) for one in kinds):
        return value
    if int in kinds and isinstance(value, float) and math.isfinite(value) and value.is_integer():
        return int(value)
    return _UNFIT


def _members(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _is(value: Any, kind: Any) -> bool:
    if kind is Any:
        return True
    if get_origin(kind) is Literal:
        return value in get_args(kind) and not isinstance(value, bool)
    if get_origin(kind) is list:
        return isinstance(value, (ListConfig, list, tuple)) and all(_is(item, get_args(kind)[0]) for item in value)
    if kind in (int, float):
        return isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
    if kind in (dict, list):
        return isinstance(value, (DictConfig, dict) if kind is dict else (ListConfig, list, tuple))
    if kind is LazyCall:
        # An object that was made already is as good.
        return is_lazy(value) or not isinstance(value, (DictConfig, ListConfig, *_SCALARS))
    return isinstance(value, kind)


def _described(kind: Any) -> str:
    """Return in words what a key takes.

    >>> _described(str | Literal["auto"] | None)
    "text, 'auto' or None"
    """
    words: list[str] = []
    for one in _members(kind):
        if get_origin(one) is Literal:
            words += map(repr, get_args(one))
        elif get_origin(one) is list:
            words.append(f"a list of {_ITEMS[get_args(one)[0]]}")
        else:
            words.append(_WORDS[one])
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _paths(known: Keys, above: str) -> Iterator[str]:
    for key, below in known.items():
        yield f"{above}{key}"
        if isinstance(below, Mapping):
            yield from _paths(below, f"{above}{key}.")


def origin(config: DictConfig, path: str) -> str:
    """Return where a value comes from, as messages say it: ` in configs/gpt.py`; empty if that is not known."""
    overridden = config.__dict__.get("_overridden") or {}
    for key in (path, *(path.rsplit(".", count)[0] for count in range(1, path.count(".") + 1))):
        if key in overridden:
            return f" (by {overridden[key]!r})"
    file = config.__dict__.get("_file")
    return f" in {file}" if file else ""
