"""Nested results as flat names."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from treadle.errors import ConfigError


def flatten_results(results: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the numbers of nested dicts by their path.

    >>> flatten_results({"test": {"Acc@1": 0.5, "loss": 2}, "time": 1.5})
    {'test/Acc@1': 0.5, 'test/loss': 2, 'time': 1.5}

    Raises:
        ConfigError: A result is no number, or two have the same path.
    """
    flat: dict[str, Any] = {}
    _flatten(results, "", flat)
    return flat


def _flatten(results: Mapping[Any, Any], prefix: str, flat: dict[str, Any]) -> None:
    for key, value in results.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping):
            _flatten(value, f"{path}/", flat)
        elif not is_number(value):
            raise ConfigError(
                f"the result {path!r} is a {type(value).__name__}; an evaluation returns numbers, or dicts of them"
            )
        elif path in flat:
            raise ConfigError(f"the result {path!r} is there twice, as a name and as a path; rename one of them")
        else:
            flat[path] = value


def is_number(value: Any) -> bool:
    """Whether `value` is one number, on the host or on a device; text that reads like a number is none."""
    if isinstance(value, Tensor) or hasattr(value, "__array__"):
        return bool(value.size == 1 if not isinstance(value, Tensor) else value.numel() == 1)
    return hasattr(value, "__float__")
