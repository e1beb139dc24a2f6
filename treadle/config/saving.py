"""A config written to a file, so that it loads again and builds the same."""

import os
import tempfile
from enum import Enum
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, Node

from treadle.config.locating import name_of
from treadle.config.nodes import TARGET, ConfigTuple, as_node, children, location
from treadle.config.yaml_format import to_yaml
from treadle.errors import ConfigError

_LOCATE = "treadle.config.locate"
_SCALARS = (bool, int, float, str, bytes)


def save(config: Any, path: str | Path) -> None:
    """Write a config as YAML; the file is complete or not there.

    Targets, and classes and functions among the values, are written by name; interpolations stay as they are.

    Raises:
        ConfigError: a value cannot be written, such as a model, or the file cannot, or its name says it is no YAML.
    """
    file = Path(path)
    if file.suffix.lower() in (".py", ".json", ".toml", ".ini"):
        raise ConfigError(f"{file}: a config is written as YAML; give it a name that ends in .yaml")
    text = to_yaml(plain(as_node(config)))
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        _replace(file, text)
    except OSError as error:
        raise ConfigError(f"cannot write the config to {file}: {error}") from error


def plain(node: Any) -> Any:
    """Return a tree as plain data for YAML, with names in place of classes and functions."""
    content = node._content if isinstance(node, (DictConfig, ListConfig)) else None
    if content is not None and not isinstance(content, (dict, list)):
        return content  # an interpolation, or a value still to be given
    if isinstance(node, DictConfig):
        return None if content is None else {key: _entry(node, key, child) for key, child in children(node)}
    items = [_entry(node, index, child) for index, child in children(node)]
    return tuple(items) if isinstance(node, ConfigTuple) else items


def _entry(parent: Any, key: Any, child: Node) -> Any:
    if isinstance(child, (DictConfig, ListConfig)):
        return plain(child)
    value = child._value()
    if value is None or isinstance(value, Path) or type(value) in (*_SCALARS, set):
        return value
    base: Any = next((scalar for scalar in _SCALARS if isinstance(value, scalar)), None)
    if base is not None and not isinstance(value, Enum):
        return base(value)  # a number of numpy, say
    try:
        name = name_of(value)
    except ConfigError as error:
        raise ConfigError(f"{location(parent, key)}: {_refusal(value, error)}") from error
    return name if key == TARGET else {TARGET: _LOCATE, "name": name}


def _refusal(value: Any, error: ConfigError) -> str:
    if callable(value) and hasattr(value, "__qualname__"):
        return str(error)
    return (
        f"{type(value).__name__} objects cannot be written to a file; write a LazyCall that makes one, or pass the "
        "object to instantiate()"
    )


def _replace(file: Path, text: str) -> None:
    # A reader, or a crash, finds the old file or the new one, never half of one.
    handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, file)
    except BaseException:
        os.unlink(temporary)
        raise
