"""What was decided in a trial, as plain data, and a text by which equal values are told from others."""

import json
from collections.abc import Mapping
from typing import Any

from treadle.errors import ConfigError

Assignment = dict[str, Any]
"""What was decided: for each label a name, a number, a list of numbers or another plain value."""


def key_of(value: Any) -> str:
    """Return a text that is the same for equal values, tuples and lists alike.

    >>> key_of((1, 2)) == key_of([1, 2]), key_of("1") == key_of(1)
    (True, False)
    """
    return json.dumps(plain(value), sort_keys=True)


def plain(value: Any) -> Any:
    """Return `value` as JSON has it: tuples become lists.

    Raises:
        ConfigError: JSON cannot hold it.
    """
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ConfigError(
        f"{value!r} of type {type(value).__name__} cannot be part of an architecture, which is plain JSON data; "
        "choose between numbers, strings, lists of them, or use a LayerChoice for modules"
    )
