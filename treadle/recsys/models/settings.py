"""Settings of models, checked when the model is built."""

from collections.abc import Sequence
from typing import Any

from treadle.errors import ConfigError, check_choice
from treadle.recsys.config.configurator import Config


def choice(config: Config, name: str, choices: Sequence[str]) -> str:
    """Return a setting that has to be one of `choices`.

    Raises:
        ConfigError: It is none of them.
    """
    value = config[name]
    check_choice(name, value, choices, whose=f" for {config.model}")
    return str(value)


def share(config: Config, name: str) -> float:
    """Return a setting that has to be at least 0 and below 1, such as a dropout.

    Raises:
        ConfigError: It is not.
    """
    value = config[name]
    if not isinstance(value, (int, float)) or not 0 <= value < 1:
        raise ConfigError(f"{name}={value!r} must be at least 0 and below 1")
    return float(value)


def whole(config: Config, name: str, least: int = 1) -> int:
    """Return a setting that has to be a whole number.

    Raises:
        ConfigError: It is none, or below `least`.
    """
    value = config[name]
    if type(value) is not int or value < least:
        raise ConfigError(f"{name}={value!r} must be a whole number from {least}")
    return value


def whole_or_none(config: Config, name: str) -> int | None:
    """Return a setting that has to be a whole number from 1, or nothing.

    Raises:
        ConfigError: It is neither.
    """
    value = config[name]
    if value is not None and (type(value) is not int or value < 1):
        raise ConfigError(f"{name}={value!r} must be a whole number from 1, or nothing")
    return value


def number(config: Config, name: str, least: float = 0.0) -> float:
    """Return a setting that has to be a number.

    Raises:
        ConfigError: It is none, or below `least`.
    """
    value = config[name]
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not value >= least:
        raise ConfigError(f"{name}={value!r} must be a number from {least:g}")
    return float(value)


def sizes(config: Config, name: str) -> list[int]:
    """Return a setting that has to be a list of sizes of layers.

    Raises:
        ConfigError: It is none.
    """
    value: Any = config[name]
    good = isinstance(value, (list, tuple)) and all(type(size) is int and size > 0 for size in value)
    if not good:
        raise ConfigError(f"{name}={value!r} must be a list of whole numbers from 1, such as [128, 64]")
    return list(value)
