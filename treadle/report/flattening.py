"""Nested settings as lines of a table."""

import json
from collections.abc import Mapping
from typing import Any


def flat(value: Any, place: str = "") -> dict[str, Any]:
    """Return what holds no mappings, by its dotted place.

    >>> flat({"optim": {"lr": 0.1, "betas": [0.9, 0.95]}, "seed": 0})
    {'optim.lr': 0.1, 'optim.betas': [0.9, 0.95], 'seed': 0}
    """
    if not isinstance(value, Mapping) or not value:
        return {place: value}
    inside = ((f"{place}.{key}" if place else str(key), item) for key, item in value.items())
    return {key: leaf for name, item in inside for key, leaf in flat(item, name).items()}


def shown(value: Any) -> str:
    """Return a value as text for people.

    >>> [shown(value) for value in (None, 0.1, "a", [1, 2], True)]
    ['none', '0.1', 'a', '[1, 2]', 'true']
    """
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value, default=str)
