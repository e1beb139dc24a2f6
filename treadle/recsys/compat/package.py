"""RecBole's package, wherever it is installed: its folder, its models and their settings, read without running it."""

import ast
import importlib.machinery
import os
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from treadle.errors import ConfigError
from treadle.recsys.compat.names import FAMILIES, MODELS, ROOT
from treadle.recsys.config_defaults import read_settings_file

VARIABLE = "TREADLE_RECBOLE"
"""The environment variable that names the folder of RecBole's package, where it lies in another environment."""
INSTALL = "pip install --no-deps recbole"
MISSING = (
    f"RecBole is not installed here: {INSTALL} (none of what it depends on is needed), or let "
    f"{VARIABLE} name the folder of its package in another environment"
)


def find_package(folder: str | os.PathLike[str] | None = None) -> Path | None:
    """Return the folder of RecBole's package; None if it is not installed.

    Args:
        folder: Where it is: the package itself, or the folder that it lies in. By default the environment variable
            `TREADLE_RECBOLE` says so, or it is looked for where Python looks for packages.

    Raises:
        ConfigError: There is no such package in the folder.
    """
    given = folder if folder is not None else os.environ.get(VARIABLE)
    if not given:
        return _installed()
    for place in (Path(given), Path(given) / ROOT):
        if (place / "model" / "abstract_recommender.py").is_file():
            return place.resolve()
    raise ConfigError(f"{os.fspath(given)} holds no package of RecBole; name the folder that is called {ROOT!r}")


def _installed() -> Path | None:
    spec = importlib.machinery.PathFinder.find_spec(ROOT, sys.path)
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    found = [Path(place) for place in places if (Path(place) / "model" / "abstract_recommender.py").is_file()]
    return found[0].resolve() if found else None


@cache
def models_in(package: Path) -> Mapping[str, str]:
    """Return the models of a package by name, each with the name of its module; no file of it is run."""
    found: dict[str, str] = {}
    for family in FAMILIES:
        file = package / "model" / family / "__init__.py"
        if file.is_file():
            found |= _imported_names(file, f"{MODELS}.{family}")
    return found


def _imported_names(file: Path, package: str) -> dict[str, str]:
    lines = ast.parse(file.read_text(encoding="utf-8"), str(file)).body
    wanted = [line for line in lines if isinstance(line, ast.ImportFrom) and (line.module or "").startswith(package)]
    return {alias.asname or alias.name: str(line.module) for line in wanted for alias in line.names}


def settings_of(package: Path, model: str) -> dict[str, Any]:
    """Return the settings that come with a model of the package; none if it has no file of them."""
    file = package / "properties" / "model" / f"{model}.yaml"
    return read_settings_file(file) if file.is_file() else {}
