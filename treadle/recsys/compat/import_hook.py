"""Modules by RecBole's names: present only while somebody asks for them, and made of what Treadle has.

The system's side (settings, data, trainers, evaluation) is always Treadle's. The models' side (`recbole.model`) is
RecBole's own where its package is installed, so that its models are made of its own layers and losses; where it is
not, Treadle's classes of the same names are served. LightGBM and XGBoost are Treadle's in either case: RecBole's
classes hold nothing but the library's booster, which its trainers put into them.
"""

import os
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Any

import numpy as np
import torch

from treadle.checkpoint import read_file
from treadle.checkpoint.format.safe_unpickler import read_torch_file
from treadle.recsys.compat.name_table import FAMILIES, MODEL_SIDE, MODELS, REFUSED, ROOT, SYSTEM, TRAINERS, TREES, Names
from treadle.recsys.compat.package import list_models

# Names of NumPy, SciPy and torch that files of RecBole's time use, and that mean something else today, or nothing


OLD_TYPES: Mapping[str, Any] = {
    "bool": np.bool_,
    "int": np.int64,
    "long": np.int64,
    "float": np.float64,
    "float_": np.float64,
    "object": np.object_,
    "str": np.str_,
    "unicode_": np.str_,
    "complex": np.complex128,
}


class PatchedModule(ModuleType):
    """A module with further names: what is asked for is taken from them, and otherwise from the module."""

    def __init__(self, module: ModuleType, further: Mapping[str, Any]) -> None:
        super().__init__(module.__name__, module.__doc__)
        self.__dict__.update(further)
        self.__dict__["_module"] = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_module"], name)


def patch_module(module: ModuleType) -> None:
    """Let a module that was just run find what it expects of NumPy, SciPy and torch."""
    for name, value in list(vars(module).items()):
        if isinstance(value, PatchedModule) or not isinstance(value, ModuleType):
            continue
        if value.__name__ == "numpy":
            vars(module)[name] = _with_types(value)
        elif value.__name__ == "scipy.sparse":
            vars(module)[name] = _with_updates(value)
        elif value is torch and f"{name}.load(" in Path(str(module.__file__)).read_text(encoding="utf-8"):
            # Only where it is called: every other name of torch is then looked up by way of the stand-in.
            vars(module)[name] = PatchedModule(torch, {"load": load_weights})


def _with_types(numpy: ModuleType) -> ModuleType:
    missing = {name: kind for name, kind in OLD_TYPES.items() if name not in vars(numpy)}
    return PatchedModule(numpy, missing) if missing else numpy


def _with_updates(sparse: ModuleType) -> ModuleType:
    """Give `dok_matrix` the method that sets many entries at once, which SciPy dropped in 1.13."""
    plain: Any = vars(sparse)["dok_matrix"]
    if hasattr(plain, "_update"):
        return sparse

    class dok_matrix(plain):  # type: ignore[misc]  # noqa: N801
        """A sparse matrix by the places of its entries."""

        def _update(self, data: Mapping[tuple[int, int], Any]) -> None:
            self._dict.update(data)

    return PatchedModule(sparse, {"dok_matrix": dok_matrix})


def load_weights(file: str | os.PathLike[str], *ignored: Any, **also_ignored: Any) -> Any:
    """Return what is in a file of weights that a model begins from; in the place of torch's `load`.

    Models of RecBole's open such files themselves, and expect a dict with `state_dict`. Torch's own function refuses
    those that Treadle's trainers write, which are no pickles, and those of RecBole's, which hold an object. Here both
    are read as data; tensors are on the host, whatever `map_location` says.

    Raises:
        CheckpointError: The file is not there, damaged, or neither.
    """
    return read_torch_file(file) if zipfile.is_zipfile(file) else read_file(file)


_kept: dict[Path | None, dict[str, ModuleType]] = {}
"""The modules of each package that were served before: a class is the same each time it is asked for."""
_unserved: list[str] = []
"""What was asked of served modules, and is not there, in the order in which it was asked."""


class AliasModule(ModuleType):
    """A module whose names are looked up where they are when they are first asked for."""

    def __init__(self, name: str, names: Names) -> None:
        super().__init__(name, f"What Treadle serves as {name}.")
        self.__dict__["_names"] = names
        self.__dict__["__all__"] = sorted(names)

    def __getattr__(self, name: str) -> Any:
        where = self.__dict__["_names"].get(name)
        if where is None:
            if not name.startswith("_"):
                _unserved.append(f"{self.__name__}.{name}")
            if name in REFUSED:
                # Of an AttributeError an import statement says nothing but the name.
                raise ImportError(f"{self.__name__}.{name} is not served: {REFUSED[name]}", name=self.__name__)
            raise AttributeError(f"{self.__name__} serves no {name!r}")
        value = resolve_name(f"{where}:{name}")
        self.__dict__[name] = value
        return value


class AliasLoader(Loader):
    """Makes a served module."""

    def __init__(self, names: Names) -> None:
        self._names = names

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module, empty."""
        return AliasModule(spec.name, self._names)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: names are looked up on first use."""


class PatchingLoader(Loader):
    """Runs a file of RecBole's, and lets it find what it expects of NumPy and SciPy."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Leave that to Python."""
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        """Run the file."""
        self._loader.exec_module(module)
        patch_module(module)


class Finder(MetaPathFinder):
    """Finds the modules below `recbole`.

    Args:
        package: The folder of RecBole's package; None if it is not installed.
    """

    def __init__(self, package: Path | None) -> None:
        self._package = package

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how a module is made; None for what is not RecBole's, and for what nobody serves."""
        if fullname != ROOT and not fullname.startswith(f"{ROOT}."):
            return None
        if fullname in SYSTEM:
            return _served(fullname, {**_trainers(fullname), **SYSTEM[fullname]}, package=True)
        if fullname == MODELS or fullname in [f"{MODELS}.{family}" for family in FAMILIES]:
            return _served(fullname, self._family(fullname), package=True, folder=self._folder(fullname))
        if self._package is not None and not fullname.startswith(f"{TREES}."):
            return self._own(fullname)
        if fullname in MODEL_SIDE:
            return _served(fullname, MODEL_SIDE[fullname])
        return self._built_in(fullname)

    def _folder(self, fullname: str) -> Path | None:
        return None if self._package is None else self._package.joinpath(*fullname.split(".")[1:])

    def _family(self, fullname: str) -> Names:
        """Return the models of a family; all are there, and each is loaded when it is asked for."""
        if fullname == MODELS:
            return {}
        if self._package is None or fullname == TREES:
            return _built_in_models(fullname.rsplit(".", 1)[1])
        known = list_models(self._package)
        return {name: module for name, module in known.items() if module.startswith(f"{fullname}.")}

    def _own(self, fullname: str) -> ModuleSpec | None:
        """Return how a file of RecBole's is run, if it belongs to its models."""
        folder = self._folder(fullname.rpartition(".")[0])
        if not fullname.startswith(f"{MODELS}.") or folder is None:
            return None
        spec = PathFinder.find_spec(fullname, [str(folder)])
        if spec is not None and spec.loader is not None:
            spec.loader = PatchingLoader(spec.loader)
        return spec

    def _built_in(self, fullname: str) -> ModuleSpec | None:
        """Return a module for one of Treadle's own models, such as `recbole.model.general_recommender.bpr`."""
        package, _, module = fullname.rpartition(".")
        if package not in [f"{MODELS}.{family}" for family in FAMILIES]:
            return None
        known = self._family(package)
        names = {name: where for name, where in known.items() if name.lower() == module}
        return _served(fullname, names) if names else None


def _trainers(fullname: str) -> Names:
    """Return the trainers that there are, for the modules that have them."""
    if fullname not in TRAINERS:
        return {}
    ours = "treadle.recsys.trainers"
    return {name: ours for name in resolve_name(f"{ours}:__all__") if name.endswith("Trainer")}


def _built_in_models(family: str) -> Names:
    ours = f"treadle.recsys.models.{family}"
    return dict.fromkeys(resolve_name(f"{ours}:__all__"), ours)


def _served(name: str, names: Names, *, package: bool = False, folder: Path | None = None) -> ModuleSpec:
    spec = ModuleSpec(name, AliasLoader(names), is_package=package)
    if package and folder is not None:
        spec.submodule_search_locations = [str(folder)]
    return spec


@contextmanager
def served_names(package: Path | None) -> Iterator[None]:
    """Serve RecBole's names inside the block; afterwards `sys.modules` is as it was.

    Args:
        package: The folder of RecBole's package, for its models; None serves Treadle's.
    """
    finder, before = Finder(package), _remove_modules()
    sys.modules.update(_kept.get(package, {}))
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        _kept[package] = _remove_modules()
        sys.modules.update(before)


def install_finder(package: Path | None) -> None:
    """Serve RecBole's names for the rest of the process; what is there by those names already is put aside."""
    if any(isinstance(finder, Finder) for finder in sys.meta_path):
        return
    _remove_modules()
    sys.modules.update(_kept.get(package, {}))
    sys.meta_path.insert(0, Finder(package))


def unserved_names() -> list[str]:
    """Return what was asked of served modules, and is not there, as `recbole.utils.Name`; the last one last."""
    return list(_unserved)


def _remove_modules() -> dict[str, ModuleType]:
    names = [name for name in sys.modules if name == ROOT or name.startswith(f"{ROOT}.")]
    return {name: sys.modules.pop(name) for name in names}
