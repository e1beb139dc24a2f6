"""What an object keeps, and what its parts keep: found by its attributes."""

from collections.abc import Iterable, Mapping
from itertools import islice
from types import ModuleType
from typing import Any

from torch import Tensor

DEPTH = 3
"""How many objects deep things are looked for: in a trainer, in its parts, and in theirs."""
ENTRIES = 100
"""How many entries of a list or dict are looked at: longer ones are data."""


def kept_by(keeper: Any, depth: int = DEPTH) -> list[tuple[str, Any]]:
    """Return whatever `keeper` and its parts have as attributes, or in lists and dicts, with its name; its own first.

    >>> from types import SimpleNamespace
    >>> [name for name, _ in kept_by(SimpleNamespace(several={"one": 1}, part=SimpleNamespace(other=2)))]
    ['several', "several['one']", 'part', 'part.other']
    """
    # Every start of a run walks through hundreds of objects: a call for each of them is what would take the time.
    kept: list[tuple[str, Any]] = []
    layer: list[tuple[str, Any]] = [("", keeper)]
    known = {id(keeper)}
    for _ in range(depth):
        found = [one for place, holder in layer for one in _held_in(place, holder)]
        kept += found
        layer = []
        for name, value in found:
            holds = hasattr(value, "__dict__") and not isinstance(value, (type, ModuleType, Tensor))
            if holds and id(value) not in known:
                known.add(id(value))
                layer.append((name, value))
    return kept


def name_within(keeper: Any, wanted: Any, depth: int = DEPTH) -> str | None:
    """Return the name by which `keeper` or a part of it keeps `wanted`, the shortest; None if it does not."""
    return next((name for name, value in kept_by(keeper, depth) if value is wanted), None)


def _held_in(place: str, holder: Any) -> list[tuple[str, Any]]:
    try:
        attributes = dict(vars(holder))
    except (TypeError, ReferenceError):
        return []
    held: list[tuple[str, Any]] = []
    for name, value in attributes.items():
        path = f"{place}.{name}" if place else name
        held.append((path, value))
        entries: Iterable[tuple[Any, Any]] = ()
        if isinstance(value, Mapping):
            entries = value.items()
        elif isinstance(value, (list, tuple)):
            entries = enumerate(value)
        for key, entry in list(islice(entries, ENTRIES)):
            held.append((f"{path}[{key!r}]", entry))
    return held
