"""Config files that are Python: how one is run, and how `from .other import x` in it finds the other file.

Each file that is run is a module in a name space of its own, in which the folders of the disk are packages. Python's
own import statement does the rest: a finder, present only while files are run, maps the names back to files. So
a file that two others import is run twice, and what one of them changes the other does not see. `__import__` is
never replaced, and no bytecode is written.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.abc import Loader, MetaPathFinder, SourceLoader
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from itertools import count
from pathlib import Path
from traceback import walk_tb
from types import ModuleType
from typing import Any
from urllib.parse import quote, unquote

from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from treadle.config.nodes import as_node, lock
from treadle.errors import ConfigError, did_you_mean

PREFIX = "_treadle_config_"
_numbers = count(1)


class FileError(ConfigError):
    """A config file could not be run; the message names the file and the line."""


def run_file(path: Path) -> ModuleType:
    """Run a config file and return it as a module that no other run shares.

    Raises:
        ConfigError: the file, or one that it imports, failed; its error is the cause.
    """
    with _session() as session:
        return session.run(_absolute(path))


def is_running() -> bool:
    """Return whether a config file is being run at this moment."""
    return _current.get() is not None


def source_file(module: str) -> Path | None:
    """Return the config file that the module with this name came from, None for all other modules."""
    known = sys.modules.get(module) if module.startswith(PREFIX) else None
    return None if known is None else Path(str(known.__file__))


def shown(path: Path) -> str:
    """Return a path as messages show it: from the working folder on if it lies in it, else in full."""
    full, folder = _absolute(path), Path.cwd()
    return str(full.relative_to(folder)) if full.is_relative_to(folder) else str(full)


def _absolute(path: Path) -> Path:
    # Links are not followed: a file's neighbours are those of the place it was asked for at.
    return Path(os.path.abspath(path))


class _ConfigModule(ModuleType):
    """A config file that was run; the dicts that others import from it are configs, with their keys fixed."""

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        exported: set[str] = super().__getattribute__("__dict__").setdefault("__exported__", set())
        if name.startswith("_") or name in exported or not (type(value) is dict or isinstance(value, DictConfig)):
            return value
        exported.add(name)
        try:
            node = as_node(value)
        except OmegaConfBaseException:  # a dict whose keys no config can have is no config
            return value
        lock(node)
        setattr(self, name, node)
        return node


class _FileLoader(SourceLoader):
    """Compiles a config file anew each time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the empty module."""
        return _ConfigModule(spec.name)

    def get_filename(self, fullname: str) -> str:
        """Return the path, which tracebacks show."""
        return str(self.path)

    def get_data(self, path: str | bytes) -> bytes:
        """Return the text of the file."""
        return Path(os.fsdecode(path)).read_bytes()


class _ImportedLoader(Loader):
    """Runs a file in a name space of its own, and gives the module to the file that imports it."""

    def __init__(self, session: "_Session", path: Path) -> None:
        self.session = session
        self.path = path

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Run the file."""
        module = self.session.run(self.path)
        self.own_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Put back what the import statement has written over; the file has been run already."""
        module.__spec__ = self.own_spec


class _FolderLoader(Loader):
    """A folder as a package, without a line of code."""

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing."""


class _Session(MetaPathFinder):
    """All files run for one load: their name spaces, and the way from a module's name to a file."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[Path, str]] = {}
        """The file that runs in each name space, and its module's name."""

    def run(self, path: Path) -> ModuleType:
        """Run a file in a new name space."""
        self._refuse_circle(path)
        namespace = f"{PREFIX}{next(_numbers)}"
        is_package = path.name == "__init__.py"
        name = _module_name(namespace, path.parent if is_package else path.with_suffix(""))
        self.files[namespace] = (path, name)
        spec = ModuleSpec(name, _FileLoader(path), origin=str(path), is_package=is_package)
        spec.has_location = True
        sys.modules[namespace] = module_from_spec(ModuleSpec(namespace, _FolderLoader(), is_package=True))
        module = sys.modules[name] = module_from_spec(spec)
        token = _path_of_running.set((*_path_of_running.get(), path))
        try:
            assert spec.loader is not None
            spec.loader.exec_module(module)
        except BaseException as error:
            self.forget(since=namespace)
            if isinstance(error, FileError) or not isinstance(error, Exception):
                raise
            raise _located(path, error) from error
        finally:
            _path_of_running.reset(token)
        return module

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how to load a config file or folder that a config file names in a relative import."""
        namespace = fullname.partition(".")[0]
        if namespace not in self.files:
            return None
        importer, _ = self.files[namespace]
        place = _path(fullname)
        folder = ModuleSpec(fullname, _FolderLoader(), is_package=True)
        if place is None or place in importer.parents:
            return folder  # the packages above a file: their __init__.py is none of its business
        for file in (place / "__init__.py", place.with_name(place.name + ".py")):
            if file.is_file():
                return ModuleSpec(fullname, _ImportedLoader(self, file), origin=str(file))
        if place.is_dir():
            return folder
        raise ModuleNotFoundError(_no_file(place))

    def forget(self, *, since: str | None = None) -> None:
        """Take the modules of all name spaces, or of those from `since` on, out of Python's table."""
        spaces = list(self.files)
        dropped = set(spaces[0 if since is None else spaces.index(since) :])
        for name in [name for name in sys.modules if name.partition(".")[0] in dropped]:
            del sys.modules[name]

    def keep_files_only(self) -> None:
        """Leave, of all modules, those of files that define something: type hints and pickle look classes up there."""
        kept = {}
        for namespace, (_, name) in self.files.items():
            if name in sys.modules and _defines_something(sys.modules[name]):
                kept.update({key: sys.modules[key] for key in (namespace, name)})
        self.forget()
        sys.modules.update(kept)

    def _refuse_circle(self, path: Path) -> None:
        running = _path_of_running.get()
        if path in running:
            circle = " imports ".join(shown(file) for file in (*running[running.index(path) :], path))
            raise FileError(f"config files import each other in a circle: {circle}")


_current: ContextVar[_Session | None] = ContextVar("config session", default=None)
_path_of_running: ContextVar[tuple[Path, ...]] = ContextVar("config files being run", default=())


@contextmanager
def _session() -> Iterator[_Session]:
    present = _current.get()
    if present is not None:
        yield present
        return
    session = _Session()
    token = _current.set(session)
    sys.meta_path.insert(0, session)  # first: other finders need not understand the names
    try:
        yield session
    finally:
        sys.meta_path.remove(session)
        _current.reset(token)
        session.keep_files_only()


def _defines_something(module: ModuleType) -> bool:
    return any(getattr(value, "__module__", None) == module.__name__ for value in list(vars(module).values()))


def _module_name(namespace: str, path: Path) -> str:
    return ".".join([namespace, *(quote(part, safe="").replace(".", "%2E") for part in path.parts)])


def _path(module: str) -> Path | None:
    parts = [unquote(part) for part in module.split(".")[1:]]
    return Path(*parts) if parts else None


def _no_file(place: Path) -> str:
    present = [file.stem for file in sorted(place.parent.glob("*.py"))] if place.parent.is_dir() else []
    near = did_you_mean(place.name, present) or (f"; the folder has {present}" if present else "")
    return f"there is no config file {shown(place.with_name(place.name + '.py'))}{near}"


def _located(path: Path, error: Exception) -> FileError:
    """Return an error that says in which line of the config file `error` came up."""
    lines = [line for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_filename == str(path)]
    if isinstance(error, SyntaxError) and error.filename == str(path) and error.lineno is not None:
        lines.append(error.lineno)
    line = lines[-1] if lines else None
    place = shown(path) if line is None else f"{shown(path)}, line {line}"
    kind = "" if isinstance(error, ConfigError) else f"{type(error).__name__}: "
    return FileError(f"{place}: {kind}{_text(error)}")


def _text(error: Exception) -> str:
    if isinstance(error, SyntaxError):
        return error.msg
    if isinstance(error, ImportError) and error.path and str(error.name).startswith(PREFIX):
        return f"{error.msg.partition(' from ')[0]} from {shown(Path(error.path))}"
    return str(error)
