"""Configs read from files, Python or YAML."""

import os
import tempfile
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, Node
from omegaconf.errors import OmegaConfBaseException

from treadle.config.nodes import TARGET, ConfigDict, ConfigTuple, as_node, children, location, lock, near_keys
from treadle.config.python_files import run_file, shown
from treadle.config.signatures import check_tree
from treadle.config.targets import target_name
from treadle.config.value_objects import as_call, is_value_object
from treadle.config.yaml_format import from_yaml, to_yaml
from treadle.errors import ConfigError, did_you_mean

# A config written to a file, so that it loads again and builds the same


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
        call = as_call(value)
        if call is not None:
            return plain(call)
        name = target_name(value)
    except ConfigError as error:
        raise ConfigError(f"{location(parent, key)}: {_refusal(value, error)}") from error
    return name if key == TARGET else {TARGET: _LOCATE, "name": name}


def _refusal(value: Any, error: ConfigError) -> str:
    if is_value_object(value) or (callable(value) and hasattr(value, "__qualname__")):
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


SUFFIXES = (".py", ".yaml", ".yml")
_SETTINGS = (DictConfig, ListConfig, dict, list, tuple, str, bytes, int, float, Path, Enum, type(None))


def load(path: str | Path, keys: str | Iterable[str] | None = None) -> Any:
    """Read a config file; see `LazyConfig.load`."""
    config = _load(Path(path))
    if keys is None:
        return config
    if isinstance(keys, str):
        return _key(config, keys)
    return tuple(_key(config, key) for key in keys)


def _key(config: ConfigDict, key: str) -> Any:
    if key not in config:
        raise ConfigError(f"{config.__dict__['_file']} has no key {key!r}{near_keys(config, key)}")
    return config[key]


def _load(path: Path) -> ConfigDict:
    _require_config_file(path)
    file = shown(path)
    values = _python_values(path) if path.suffix == ".py" else from_yaml(_text(path), file)
    config = ConfigDict(file=file)
    for name, value in values.items():
        try:
            config[name] = value
        except OmegaConfBaseException as error:
            raise ConfigError(
                f"{name} in {file}: {str(error).splitlines()[0]}; a name that begins with an underscore is no part "
                "of the config"
            ) from error
    lock(config)
    check_tree(config, load_targets=False)
    return config


def _python_values(path: Path) -> dict[str, Any]:
    # Modules, classes and functions are what a config file works with, not what it says.
    values = vars(run_file(path))
    return {name: value for name, value in values.items() if not name.startswith("_") and _is_setting(value)}


def _is_setting(value: Any) -> bool:
    # What stands for a value that is still open, such as a domain of a search, says so itself: its class is a pack's.
    if isinstance(value, _SETTINGS) or is_value_object(value):
        return True
    return getattr(type(value), "stands_for_a_setting", False) is True


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{shown(path)} cannot be read: {error}") from error


def _require_config_file(path: Path) -> None:
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"{path} is no config file; its name must end in one of {', '.join(SUFFIXES)}")
    if path.is_file():
        return
    present = sorted(file.name for file in path.parent.glob("*") if file.suffix in SUFFIXES)
    near = did_you_mean(path.name, present) or (f"; the folder has {present}" if present else "")
    raise ConfigError(f"there is no config file {path}{near}")
