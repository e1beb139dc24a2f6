"""From the name of a class or function to the thing itself, and back.

A name is dotted (`torch.optim.AdamW`) or, for what a config file defines, a file and a name in it
(`/home/me/configs/gpt.py:Decoder`).
"""

import re
import sys
from collections.abc import Iterator
from enum import Enum
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Any

from treadle.config.python_files import run_file, source_file
from treadle.errors import ConfigError, did_you_mean

_IN_FILE = re.compile(r"(?P<file>.+\.py):(?P<name>[^:/\\]+)")
_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")


def locate(name: str) -> Any:
    """Return the class, function or other object with this name; its module is imported, its config file run.

    >>> locate("collections.OrderedDict")
    <class 'collections.OrderedDict'>

    Args:
        name: a dotted name, or the path of a config file, a colon and a name in it.

    Raises:
        ConfigError: there is no such thing, or its module cannot be imported.
    """
    in_file = _IN_FILE.fullmatch(name)
    if in_file is not None:
        return _attribute(name, _run(name, Path(in_file["file"])), in_file["name"].split("."))
    if not _DOTTED.fullmatch(name):
        raise ConfigError(f"{name!r} is no full name; write it as 'package.module.Name'")
    first, *rest = name.split(".")
    return _attribute(name, _imported(name, first), rest)


def loaded(name: str) -> Any:
    """Return what `name` stands for if its module is there already, else None; nothing is imported or run."""
    parts = name.split(".")
    for length in range(len(parts) - 1, 0, -1):
        module = sys.modules.get(".".join(parts[:length]))
        if module is not None:
            return _stored(module, parts[length:])
    return None


def target_name(value: Any) -> str:
    """Return the name under which `locate` finds `value`: the shortest one, or a file and a name.

    Raises:
        ConfigError: it has none, such as a lambda, or a class of an interactive session.
    """
    owner = _owner(value)
    if owner is not None:
        return f"{target_name(owner)}.{value.__name__}"
    for module, name in _places(value):
        found = _name_in(module, name, value)
        if found is not None:
            return found
    raise ConfigError(
        f"{value!r} has no name that leads back to it; define it at the top of a module or config file, or give its "
        "name as text, such as LazyCall('package.module.name')"
    )


def title(target: Any) -> str:
    """Return what messages call a target."""
    owner = _owner(target)
    if owner is not None:
        return f"{owner.__qualname__}.{target.__name__}"
    return target if isinstance(target, str) else getattr(target, "__qualname__", None) or repr(target)


def _owner(value: Any) -> type | None:
    """Return the class that a class method is bound to, which is not the one that defines it if it is inherited."""
    owner = getattr(value, "__self__", None)
    bound = isinstance(owner, type) and getattr(owner, getattr(value, "__name__", ""), None) == value
    return owner if bound else None


def _places(value: Any) -> Iterator[tuple[str, str]]:
    """Yield modules in which `value` may be found, and its name there."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if isinstance(value, Enum):
        module, name = type(value).__module__, f"{type(value).__qualname__}.{value.name}"
    if module is None or name is None:
        module, _, name = str(value).rpartition(".")  # a dtype calls itself torch.bfloat16
    yield module, name
    # A wrapper has the names of what it wraps; what it is called itself only its module knows.
    for home in (module, getattr(value, "__globals__", {}).get("__name__", "")):
        held = vars(sys.modules[home]) if home in sys.modules else {}
        yield from ((home, key) for key, held_value in list(held.items()) if held_value is value)


def _name_in(module: str, name: str, value: Any) -> str | None:
    """Return the name under which `locate` finds `value` in a module; None if it is not there by this name."""
    file = source_file(module) or _script(module)
    if file is not None:
        found = _same(_stored(sys.modules[module], name.split(".")), value)
        return f"{file.as_posix()}:{name}" if found else None
    parts = module.split(".") if module != "__main__" else []
    candidates = (".".join([*parts[:length], name]) for length in range(1, len(parts) + 1))
    return next((candidate for candidate in candidates if _same(loaded(candidate), value)), None)


def _same(found: Any, value: Any) -> bool:
    # Each look at a class method makes another object; they are equal, not identical.
    return found is value or (found is not None and hasattr(value, "__func__") and bool(found == value))


def _script(module: str) -> Path | None:
    """Return the file of the program itself: what it defines is not called `__main__` in another process."""
    file = getattr(sys.modules.get(module), "__file__", None) if module == "__main__" else None
    return None if file is None else Path(file).resolve()


def _stored(found: Any, names: list[str]) -> Any:
    for name in names:
        if isinstance(found, ModuleType):
            found = vars(found).get(name)  # getattr could run code: a module may load its names on demand
        else:
            found = getattr(found, name, None)
    return found


def _run(name: str, file: Path) -> ModuleType:
    if not file.is_file():
        raise ConfigError(f"{name!r} cannot be found: there is no file {file}")
    state = file.stat()
    return _run_once(file.resolve(), state.st_mtime_ns, state.st_size)


@cache
def _run_once(file: Path, changed: int, size: int) -> ModuleType:
    # Two names in one file must lead to classes that know each other; a file that was edited is run again.
    return run_file(file)


def _imported(name: str, module: str) -> ModuleType:
    try:
        found: ModuleType = resolve_name(f"{module}:")
    except ModuleNotFoundError as error:
        if error.name == module:
            parent, _, last = module.rpartition(".")
            missing = f"{parent} has no {last!r}{_near(parent, last)}" if parent else f"there is no module {module!r}"
            raise ConfigError(f"{name!r} cannot be found: {missing}") from error
        raise ConfigError(f"{name!r} cannot be loaded: importing {module} failed: {error}") from error
    except Exception as error:
        kind = type(error).__name__
        raise ConfigError(f"{name!r} cannot be loaded: importing {module} failed: {kind}: {error}") from error
    return found


def _attribute(name: str, found: Any, names: list[str]) -> Any:
    place = getattr(found, "__name__", "")
    for part in names:
        try:
            found = getattr(found, part)
        except AttributeError as error:
            if not isinstance(found, ModuleType) or ":" in name:
                near = did_you_mean(part, dir(found))
                raise ConfigError(f"{name!r} cannot be found: there is no {part!r}{near}") from error
            found = _imported(name, f"{place}.{part}")
        place = f"{place}.{part}"
    return found


def _near(module: str, name: str) -> str:
    return did_you_mean(name, dir(sys.modules[module]))


# Whether a name lies within another, and so does what it leads to


def begins(name: str, start: str) -> bool:
    """Whether a name is another, or lies below it.

    >>> begins("torch.nn.Linear", "torch.nn"), begins("torch.nnx", "torch.nn")
    (True, False)
    """
    return name == start or name.startswith((f"{start}.", f"{start}:"))


def stays_within(name: str, start: str) -> bool:
    """Whether the way from `start` to what `name` stands for leads through no module of elsewhere.

    >>> stays_within("torch.nn.Linear", "torch"), stays_within("torch.os.system", "torch")
    (True, False)
    """
    try:
        locate(name)
    except ConfigError:
        return True
    if ":" in name:
        return True  # a file, and a name in it
    parts = name.split(".")
    found: Any = sys.modules.get(parts[0])
    for place, part in enumerate(parts[1:], start=2):
        found = getattr(found, part, None)
        so_far = ".".join(parts[:place])
        if isinstance(found, ModuleType) and not begins(start, so_far) and not begins(found.__name__, start):
            return False
    return True
