"""Objects that stand for their values, dataclasses and configs of transformers, as the calls that make them."""

import dataclasses
from typing import Any

from treadle.config.nodes import TARGET, ConfigDict
from treadle.config.targets import target_name
from treadle.errors import ConfigError

_WRITTEN_ANEW = ("model_type", "transformers_version")
"""What a config of transformers says of its class, and of the version that wrote it down."""


def is_value_object(value: Any) -> bool:
    """Whether an object is a dataclass or a config of transformers, and not a class itself.

    What stands for a value that is still open, such as a domain of a search, is none: it has no value yet.
    """
    if isinstance(value, type) or getattr(type(value), "stands_for_a_setting", False):
        return False
    return dataclasses.is_dataclass(value) or _is_model_config(value)


def as_call(value: Any) -> ConfigDict | None:
    """Return the lazy call that makes an equal object; None for an object of another kind.

    Raises:
        ConfigError: Its class has no name that leads back to it, or makes another object of the same arguments.
    """
    if not is_value_object(value):
        return None
    arguments = _arguments_of_config(value) if _is_model_config(value) else _arguments_of_dataclass(value)
    try:
        same = _content(type(value)(**arguments)) == _content(value)
    except (TypeError, ValueError) as error:
        raise ConfigError(_not_the_same(value, str(error))) from error
    if not same:
        raise ConfigError(_not_the_same(value, "it makes another object of them"))
    return ConfigDict({TARGET: target_name(type(value)), **arguments})


def _not_the_same(value: Any, reason: str) -> str:
    name = type(value).__qualname__
    return f"{name} cannot be made again of the arguments that it shows ({reason}); write LazyCall({name})(...)"


def _is_model_config(value: Any) -> bool:
    return all(hasattr(type(value), name) for name in ("model_type", "to_diff_dict", "from_dict"))


def _content(value: Any) -> Any:
    return value.to_dict() if _is_model_config(value) else value


def _arguments_of_config(value: Any) -> dict[str, Any]:
    return {name: item for name, item in value.to_diff_dict().items() if name not in _WRITTEN_ANEW}


def _arguments_of_dataclass(value: Any) -> dict[str, Any]:
    """Return the arguments whose values are not their defaults."""
    found = {}
    for field in dataclasses.fields(value):
        item = getattr(value, field.name)
        if field.init and not _is_default(field, item):
            found[field.name] = item
    return found


def _is_default(field: dataclasses.Field[Any], item: Any) -> bool:
    default = field.default
    if field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
    # A number that equals a truth value is another one in a file.
    return type(default) is type(item) and bool(default == item)
