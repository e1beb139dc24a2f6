"""Names of NumPy, SciPy and torch that files of RecBole's time use, and that mean something else today, or nothing.

A file that is loaded by the bridge sees them through a stand-in for the module in its own name space. The packages
themselves stay as they are.
"""

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from treadle.checkpoint import read_file
from treadle.checkpoint.pickled import read_torch_file

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


class Mended(ModuleType):
    """A module with further names: what is asked for is taken from them, and otherwise from the module."""

    def __init__(self, module: ModuleType, further: Mapping[str, Any]) -> None:
        super().__init__(module.__name__, module.__doc__)
        self.__dict__.update(further)
        self.__dict__["_module"] = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_module"], name)


def mend(module: ModuleType) -> None:
    """Let a module that was just run find what it expects of NumPy, SciPy and torch."""
    for name, value in list(vars(module).items()):
        if isinstance(value, Mended) or not isinstance(value, ModuleType):
            continue
        if value.__name__ == "numpy":
            vars(module)[name] = _with_types(value)
        elif value.__name__ == "scipy.sparse":
            vars(module)[name] = _with_updates(value)
        elif value is torch and f"{name}.load(" in Path(str(module.__file__)).read_text(encoding="utf-8"):
            # Only where it is called: every other name of torch is then looked up by way of the stand-in.
            vars(module)[name] = Mended(torch, {"load": load_weights})


def _with_types(numpy: ModuleType) -> ModuleType:
    missing = {name: kind for name, kind in OLD_TYPES.items() if name not in vars(numpy)}
    return Mended(numpy, missing) if missing else numpy


def _with_updates(sparse: ModuleType) -> ModuleType:
    """Give `dok_matrix` the method that sets many entries at once, which SciPy dropped in 1.13."""
    plain: Any = vars(sparse)["dok_matrix"]
    if hasattr(plain, "_update"):
        return sparse

    class dok_matrix(plain):  # type: ignore[misc]  # noqa: N801
        """A sparse matrix by the places of its entries."""

        def _update(self, data: Mapping[tuple[int, int], Any]) -> None:
            self._dict.update(data)

    return Mended(sparse, {"dok_matrix": dok_matrix})


def load_weights(file: str | os.PathLike[str], *ignored: Any, **also_ignored: Any) -> Any:
    """Return what is in a file of weights that a model begins from; in the place of torch's `load`.

    Models of RecBole's open such files themselves, and expect a dict with `state_dict`. Torch's own function refuses
    those that Treadle's trainers write, which are no pickles, and those of RecBole's, which hold an object. Here both
    are read as data; tensors are on the host, whatever `map_location` says.

    Raises:
        CheckpointError: The file is not there, damaged, or neither.
    """
    return read_torch_file(file) if zipfile.is_zipfile(file) else read_file(file)
