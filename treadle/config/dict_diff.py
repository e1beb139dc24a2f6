"""Nested settings and facts: everything in them by its dotted name, and in what two of them differ."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple


class Difference(NamedTuple):
    """One name at which two nested mappings hold something else."""

    name: str
    first: Any
    second: Any


def leaves(value: Any, place: str = "") -> dict[str, Any]:
    """Return everything that holds nothing else, by its dotted name; a list of plain values is such a thing.

    >>> leaves({"optim": {"lr": 0.1, "betas": [0.9, 0.95]}, "data": [{"name": "a"}]})
    {'optim.lr': 0.1, 'optim.betas': [0.9, 0.95], 'data[0].name': 'a'}
    """
    if isinstance(value, Mapping) and value:
        inside = [(_below(place, key), item) for key, item in value.items()]
    elif isinstance(value, (list, tuple)) and any(isinstance(item, (Mapping, list, tuple)) for item in value):
        inside = [(f"{place}[{index}]", item) for index, item in enumerate(value)]
    else:
        return {place: value}
    return {name: leaf for inner, item in inside for name, leaf in leaves(item, inner).items()}


def differences(
    first: Mapping[str, Any], second: Mapping[str, Any], *, absent: Any = None, place: str = ""
) -> Iterator[Difference]:
    """Yield every name at which two nested mappings differ, in the order of their keys.

    >>> [tuple(found) for found in differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}, "d": 4})]
    [('a.c', 2, 3), ('d', None, 4)]

    Args:
        first: One of them.
        second: The other.
        absent: What stands for a value that one of them lacks.
        place: The name that both have themselves.
    """
    for key in dict.fromkeys([*first, *second]):
        name, one, other = _below(place, key), first.get(key, absent), second.get(key, absent)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            yield from differences(one, other, absent=absent, place=name)
        elif one != other:
            yield Difference(name, one, other)


def _below(place: str, key: Any) -> str:
    return f"{place}.{key}" if place else str(key)
