"""Which things that a config names are called without a question, where somebody else may have written it."""

import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from treadle.config.files import plain
from treadle.config.nodes import TARGET, as_node
from treadle.config.targets import begins, locate, stays_within
from treadle.errors import ConfigError
from treadle.runs.provenance import is_library

ANYTHING = "*"
LOCATE = "treadle.config.locate"
HARMLESS = (
    "torch.nn",
    "torch.optim",
    "torch._C._nn",
    "torch.utils.data.dataset",
    "torch.utils.data.dataloader",
    "torch.utils.data.sampler",
    "torch.utils.data.distributed",
    "treadle.callback",
    "treadle.callbacks",
    "treadle.data",
    "treadle.engine.evaluation",
    "treadle.engine.hooks",
    "treadle.engine.metrics",
    "treadle.ops.losses",
    "treadle.loop.metrics",
    "treadle.optim.param_groups",
    "treadle.schedules",
    "treadle.schedules.timm",
)
"""Where the things are that call nothing but what they are given: layers, optimizers, schedules, data, evaluators."""
TRAINER = "trainer"
"""Where a config names its trainer, which is given that config and no other."""
PLAIN = frozenset({bool, int, float, complex, str, list, tuple, dict, set, frozenset, range, slice})
"""What makes plain data of plain data; text of bytes would be text that nobody has seen."""
INTERPOLATION = "${"
_IN_FILE = re.compile(r"(?P<file>.+\.py):(?P<name>[^:/\\]+)")


class Allowed:
    """What may be called without a question: harmless parts of torch and Treadle, the user's own code, and more.

    The user's own code is what lies below the working folder, but not below the folder in it that holds the run, nor
    where packages are installed. A name counts by what it leads to: `torch.os.system` is none of torch.

    Args:
        names: What else may be called: the full names of things, or the beginnings of names, up to a dot; `*` is all.
        run: The folder of the run, whose files are nobody's own code.
    """

    def __init__(self, names: Sequence[str] = (), run: Path | None = None) -> None:
        self.names = tuple(names)
        self._here = os.path.realpath(os.getcwd())
        self._elsewhere = None if run is None else _top_below(self._here, os.path.realpath(run))

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.permits(name, TRAINER)

    def permits(self, name: str, where: str) -> bool:
        """Whether what a config names at a place of it may be called there: a trainer only as that of the config."""
        if any(allow in (ANYTHING, name) for allow in self.names):
            return True
        if INTERPOLATION in name:
            return False
        if any(begins(name, allow) and stays_within(name, allow) for allow in self.names):
            return True
        return self._is_known(name) and self._leads_to_known(name, where)

    def _is_known(self, name: str) -> bool:
        """Whether looking a name up runs nothing but torch, Treadle and the user's own code."""
        in_file = _IN_FILE.fullmatch(name)
        if in_file is not None:
            return self._is_own(in_file["file"])
        parts = name.split(".")
        if any(part.startswith("__") for part in parts):
            return False  # a module that is called __main__ is a program, run when it is imported
        return parts[0] in ("torch", "treadle", "builtins") or self._is_own(_module_file(parts[0]))

    def _leads_to_known(self, name: str, where: str) -> bool:
        try:
            found = locate(name)
        except ConfigError:
            return True  # there is nothing to call; that is told when it is built
        module = getattr(found, "__module__", None)
        if not callable(found) or (isinstance(found, type) and found in PLAIN):
            return True
        if not isinstance(module, str):
            return False
        own = self._is_own(getattr(sys.modules.get(module), "__file__", None))
        if isinstance(found, type) and issubclass(found, _trainer()):
            # It builds what the config that it is given names, into the folder that this one names.
            return where == TRAINER and (own or found is _trainer())
        full = f"{module}.{getattr(found, '__qualname__', '')}"
        return own or any(begins(full, start) for start in HARMLESS)

    def has_file(self, file: str) -> bool:
        """Whether a file is one of the user's own code."""
        return os.path.isfile(file) and self._is_own(file)

    def _is_own(self, file: str | None) -> bool:
        if not file:
            return False
        full = os.path.realpath(file)
        if not _is_below(full, self._here) or is_library(os.path.abspath(file)):
            return False
        return self._elsewhere is None or not _is_below(full, self._elsewhere)


def _trainer() -> type:
    from treadle.engine.trainers.default import DefaultTrainer

    return DefaultTrainer


def find_targets(config: Any) -> list[tuple[str, str]]:
    """Return where a config names something to be called, or looked up, and what; nothing is imported or called.

    Text that will be resolved only when something is made of it may name anything, and is returned as it is.

    Raises:
        ConfigError: An interpolation refers to nothing.
    """
    node = as_node(config)
    try:
        OmegaConf.resolve(node)
    except OmegaConfBaseException as error:
        raise ConfigError(f"the targets cannot be read: {str(error).splitlines()[0]}") from error
    found = list(_targets(plain(node), ""))
    trainer = node.get(TRAINER) if hasattr(node, "get") else None
    return [*found, (TRAINER, trainer)] if isinstance(trainer, str) else found


def _targets(value: Any, where: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, (list, tuple)):
        value = dict(enumerate(value))
    if isinstance(value, (str, Path)) and INTERPOLATION in str(value):
        yield where, str(value)
    if not isinstance(value, Mapping):
        return
    target = value.get(TARGET)
    if isinstance(target, str):
        looked_up = value.get("name", next(iter(value.get("_args_") or ()), None)) if target == LOCATE else None
        yield where, looked_up if isinstance(looked_up, str) else target
    for key, item in value.items():
        yield from _targets(item, f"{where}.{key}" if where else str(key))


def _module_file(module: str) -> str | None:
    """Return where a package lies, or a module, without importing it."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if spec.has_location:
        return spec.origin
    # A package without an __init__.py has a folder; what is built into Python has neither.
    places = list(spec.submodule_search_locations or ())
    return places[0] if places and spec.origin is None else None


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(os.path.join(folder, ""))


def _top_below(folder: str, path: str) -> str | None:
    """Return the part of a folder that a path is in; None if it is not below it."""
    if not _is_below(path, folder):
        return None
    return os.path.join(folder, Path(os.path.relpath(path, folder)).parts[0]) if path != folder else folder
