"""Model classes of RecBole's package, and of files that were written for it."""

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from itertools import count
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Any

from treadle.errors import ConfigError, MissingDependencyError, did_you_mean
from treadle.recsys.compat.import_hook import install_finder, patch_module, served_names, unserved_names
from treadle.recsys.compat.name_table import MODELS, RECBOLE_MODELS, REFUSED, ROOT, TREES
from treadle.recsys.compat.package import (
    INSTALL,
    MISSING,
    file_settings,
    find_dataset_class,
    find_input_type,
    find_package,
    list_models,
    package_settings,
)

PREFIX = f"{ROOT}:"
Place = str | os.PathLike[str] | None
_IN_FILE = re.compile(r"(?P<file>.+\.py)(:(?P<name>[^:/\\]+))?")
_numbers = count(1)


@contextmanager
def recbole_names(package: Place = None) -> Iterator[None]:
    """Make `import recbole...` work inside the block, whether or not RecBole is installed.

    Settings, data, trainers and evaluation are Treadle's. Models, layers and losses are RecBole's own where its package
    is installed, and Treadle's of the same names where it is not. After the block `sys.modules` is as it was; what was
    imported goes on working.

    >>> before = set(sys.modules)
    >>> with recbole_names():
    ...     from recbole.utils import InputType
    >>> InputType.PAIRWISE.name, [name for name in set(sys.modules) - before if name.startswith("recbole")]
    ('PAIRWISE', [])

    Args:
        package: The folder of RecBole's package, if it lies in another environment; see `find_package`.

    Raises:
        ConfigError: There is no package of RecBole in the folder.
    """
    with served_names(find_package(package)):
        yield


def install_names(package: Place = None) -> None:
    """Make `import recbole...` work for the rest of the process, for files that import while they run.

    Args:
        package: The folder of RecBole's package, if it lies in another environment.

    Raises:
        ConfigError: There is no package of RecBole in the folder.
    """
    install_finder(find_package(package))


def recbole_models(package: Place = None) -> list[str]:
    """Return the names of the models in RecBole's package; no file of it is run.

    Raises:
        MissingDependencyError: RecBole is not installed.
    """
    return sorted(list_models(_required(package)))


def get_model(name: str, *, package: Place = None) -> Any:
    """Return a model class of RecBole's package, its source as it is, ready for Treadle's data and trainers.

    Its settings are those that come with it in RecBole's package. `LightGBM` and `XGBoost` are Treadle's own.

    Args:
        name: Its name; `recbole.model.general_recommender:ENMF` and `recbole:ENMF` name it, too.
        package: The folder of RecBole's package, if it lies in another environment.

    Raises:
        ConfigError: There is no such model.
        MissingDependencyError: RecBole is not installed, or something that the model needs.
    """
    folder = _required(package)
    known = list_models(folder)
    short = re.split(r"[:.]", name)[-1]
    if short not in known:
        near = did_you_mean(short, known) or f"; it has {sorted(known)}"
        raise ConfigError(f"RecBole's package has no model {name!r}{near}")
    with served_names(folder), _explained(f"RecBole's {short}"):
        model = resolve_name(f"{known[short]}:{short}")
    if not known[short].startswith(f"{TREES}."):
        _make_ready(model, short, folder)
    return model


def _make_ready(model: Any, name: str, package: Path) -> None:
    """Let a model class of the package say what Treadle asks of it: its settings, its batches, where it is."""
    if "default_settings" in vars(model):
        return
    model.default_settings = package_settings(package, name, model.type)
    model.located_at = PREFIX + name
    _set_data(model)


def _set_data(model: Any) -> None:
    """Let a model class say what batches, and which data set, RecBole gives to models of its name."""
    model.input_type = find_input_type(model)
    own = find_dataset_class(model.__name__)
    if own is not None:
        model.dataset_class = own


def load_model(file: str | os.PathLike[str], name: str | None = None, *, package: Place = None) -> Any:
    """Return a model class from a file that was written for RecBole, its source as it is.

    The file may import what lies beside it.

    Args:
        file: The Python file.
        name: The class; by default the only model that the file defines.
        package: The folder of RecBole's package, if it lies in another environment.

    Raises:
        ConfigError: The file cannot be run, or does not define such a class.
        MissingDependencyError: It needs something that is not installed.
    """
    path = Path(file).expanduser().resolve()
    if not path.is_file():
        raise ConfigError(f"there is no file {os.fspath(file)} to load a model from")
    folder = find_package(package)
    with served_names(folder), _beside(path.parent), _explained(os.fspath(file)):
        module = _run(path)
    model: Any = _chosen(module, name, os.fspath(file))
    known = {} if folder is None else list_models(folder)
    for ancestor in model.__mro__[1:]:
        # A model that is made from one of the package has the settings that come with that one.
        if folder is not None and known.get(ancestor.__name__) == ancestor.__module__:
            _make_ready(ancestor, ancestor.__name__, folder)
    if "default_settings" not in vars(model):
        model.default_settings = file_settings(model, getattr(model, "type", None))
        _set_data(model)
    return model


def resolve(name: str) -> Any:
    """Return the class that a text of settings or of the command line stands for; None if it is no such text.

    `recbole:ENMF` is a model of RecBole's package, `my_model.py:MyModel` one of a file.
    """
    if name.startswith((PREFIX, f"{MODELS}.")):
        return get_model(name.removeprefix(PREFIX))
    in_file = _IN_FILE.fullmatch(name)
    return None if in_file is None else load_model(in_file["file"], in_file["name"])


def model_hint(name: str) -> str:
    """Return how to write a model that RecBole has and Treadle has not, in any case of its letters; "" for another.

    >>> model_hint("fpmc")
    "; RecBole has one: write 'recbole:FPMC' (pip install --no-deps recbole)"
    """
    found = next((one for one in RECBOLE_MODELS if one.lower() == name.lower()), None)
    return "" if found is None else f"; RecBole has one: write '{PREFIX}{found}' ({INSTALL})"


def _required(package: Place) -> Path:
    folder = find_package(package)
    if folder is None:
        raise MissingDependencyError(MISSING)
    return folder


def _run(path: Path) -> ModuleType:
    name = f"treadle_bridged_{next(_numbers)}_{path.stem}"
    spec = spec_from_file_location(name, path, loader=SourceFileLoader(name, str(path)))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    # Whoever asks for the module of a class, as dataclasses do, finds it.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    patch_module(module)
    return module


@contextmanager
def _beside(folder: Path) -> Iterator[None]:
    """Let a file import its neighbours."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Say in plain words why something could not be imported."""
    before = len(unserved_names())
    try:
        yield
    except ImportError as error:
        missing = error.name or ""
        if missing == ROOT or missing.startswith(f"{ROOT}."):
            unserved = unserved_names()[before:] or [missing]
            reason = REFUSED.get(unserved[-1].rpartition(".")[2])
            if reason is not None:
                raise ConfigError(f"{what} imports {unserved[-1]}, which Treadle does not serve: {reason}") from error
            raise ConfigError(
                f"{what} imports {unserved[-1]}, which Treadle does not serve; see docs/migrating-from-recbole.md for "
                "what stands in its place, or install RecBole if it is part of a model"
            ) from error
        if isinstance(error, ModuleNotFoundError) and missing:
            raise MissingDependencyError(f"{what} needs {missing.split('.')[0]}, which is not installed") from error
        raise ConfigError(f"{what} cannot be imported: {error}") from error
    except SyntaxError as error:
        raise ConfigError(f"{what} is no Python: {error}") from error


def _chosen(module: ModuleType, name: str | None, file: str) -> Any:
    found = _module_models(module)
    if name is None:
        if len(found) != 1:
            raise ConfigError(f"{file} defines {sorted(found) or 'no model'}; say which with {file}:Name")
        return next(iter(found.values()))
    if name in vars(module) and isinstance(vars(module)[name], type):
        return vars(module)[name]
    near = did_you_mean(name, found) or f"; it defines {sorted(found)}"
    raise ConfigError(f"{file} has no model {name!r}{near}")


def _module_models(module: ModuleType) -> Mapping[str, type]:
    own = {name: one for name, one in vars(module).items() if isinstance(one, type)}
    return {n: one for n, one in own.items() if one.__module__ == module.__name__ and hasattr(one, "calculate_loss")}
