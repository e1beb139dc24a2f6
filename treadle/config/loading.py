"""Configs read from files, Python or YAML."""

from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig
from omegaconf.errors import OmegaConfBaseException

from treadle.config.nodes import ConfigDict, lock, near_keys
from treadle.config.running import run_file, shown
from treadle.config.signatures import check_tree
from treadle.config.yaml_format import from_yaml
from treadle.errors import ConfigError, did_you_mean

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
    return isinstance(value, _SETTINGS) or getattr(type(value), "stands_for_a_setting", False) is True


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
