"""The public names of Treadle, with their signatures, as a file that a test compares: `make api` writes it.

A change of this file is one that users notice: it needs a line in CHANGELOG.md. docs/support.md says when names may go
away. Methods that a class has from another public one stand there.
"""

import inspect
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from website.reference import MODULES, public_names

SNAPSHOT = Path(__file__).parents[2] / "tests" / "guards" / "public_api.txt"
HEAD = "# Every public name, with its signature. Written by `make api`; docs/support.md says what may change when.\n"


def snapshot() -> str:
    """Return the file: a paragraph for each public module, a line for each name and each public method."""
    return HEAD + "".join(f"\n{name}\n" + "".join(f"  {line}\n" for line in _lines(name)) for name in sorted(MODULES))


def _lines(name: str) -> Iterator[str]:
    module = import_module(name)
    for public in sorted(public_names(module)):
        thing = getattr(module, public)
        if inspect.ismodule(thing):
            yield f"{public}: module"
        elif inspect.isclass(thing):
            yield f"class {public}{_signature(thing)}"
            yield from sorted(f"  {public}.{line}" for line in _methods(thing))
        elif callable(thing):
            yield f"{public}{_signature(thing)}"
        else:
            yield f"{public}: {type(thing).__name__}"


@cache
def _public_classes() -> set[Any]:
    things = [getattr(import_module(name), public) for name in MODULES for public in public_names(import_module(name))]
    return {one for one in things if inspect.isclass(one)}


def _methods(kind: type) -> Iterator[str]:
    """Yield the public methods and properties that are Treadle's own, inherited ones included."""
    for name in dir(kind):
        owner = next((one for one in kind.__mro__ if name in vars(one)), object)
        if name.startswith("_") or not owner.__module__.startswith("treadle"):
            continue
        if owner is not kind and owner in _public_classes():
            continue
        value = vars(owner)[name]
        if isinstance(value, (staticmethod, classmethod)):
            yield f"{name}{_signature(value.__func__)}"
        elif isinstance(value, property):
            yield name
        elif inspect.isfunction(value):
            yield f"{name}{_signature(value)}"


def _signature(thing: Any) -> str:
    """Return the arguments, their defaults in short; annotations are for the reference, and may become stricter."""
    try:
        parameters = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return "(...)"
    shown = []
    for one in parameters:
        default = one.default
        plain = default is None or isinstance(default, (bool, int, float, str))
        if default is not one.empty and not plain:
            default = _Ellipsis()
        shown.append(one.replace(annotation=one.empty, default=default))
    return str(inspect.Signature(shown))


class _Ellipsis:
    """Stands for a default that is an object: what it looks like is no promise."""

    def __repr__(self) -> str:
        return "..."


if __name__ == "__main__":
    SNAPSHOT.write_text(snapshot(), encoding="utf-8")
