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
from treadle.recsys.compat.data import ListedDataset
from treadle.recsys.compat.name_table import FAMILIES, MODELS, ROOT
from treadle.recsys.config.defaults import merge, model_settings, read_settings_file
from treadle.recsys.data.sequential_dataset import DIENDataset
from treadle.recsys.enums import InputType, ModelType

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
def list_models(package: Path) -> Mapping[str, str]:
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


def read_settings(package: Path, model: str) -> dict[str, Any]:
    """Return the settings that come with a model of the package; none if it has no file of them."""
    file = package / "properties" / "model" / f"{model}.yaml"
    return read_settings_file(file) if file.is_file() else {}


# What a model of RecBole's package starts from: its own settings, and what its way of training needs of Treadle


BRIDGED: dict[str, Any] = {
    "numerical_features": [],
    # Python that runs in a step may count or keep something, which a recorded step would not do again.
    "execution": "eager",
    "train_all_positions": False,
    "mask_negatives": True,
}
"""What RecBole's models expect, whatever they are, and whatever Treadle's of the same name have."""
SAMPLED: dict[str, Any] = {"train_neg_sample_args": {"layout": "flat"}}
"""What its models of negatives expect; those of labels have none."""
CLICKS: dict[str, Any] = {"eval_args": {"mode": "uni100"}, "metrics": ["AUC", "LogLoss"], "valid_metric": "AUC"}
OF_MODELS: dict[str, dict[str, Any]] = {"DIN": CLICKS, "DIEN": CLICKS}
"""What RecBole sets for single models in another place than in their own files."""
USERWISE = frozenset({"CDAE", "DiffRec", "ENMF", "LDiffRec", "MacridVAE", "MultiDAE", "MultiVAE", "RaCT", "RecVAE"})
"""The models that RecBole gives batches of users, by their names, whatever their `input_type` says."""


def package_settings(package: Path, model: str, kind: ModelType) -> dict[str, Any]:
    """Return the settings that a model of RecBole's package has before anybody sets some."""
    return _layered(kind, OF_MODELS.get(model, {}), read_settings(package, model))


def file_settings(model: type, kind: ModelType | None) -> dict[str, Any]:
    """Return the settings that a model of a file has before anybody sets some: those of the model it is made from."""
    ancestors = [one for one in model.__mro__[1:] if vars(one).get("default_settings") is not None]
    brought = vars(ancestors[0])["default_settings"] if ancestors else None
    return _layered(kind, brought or model_settings([one.__name__ for one in model.__mro__]))


def _layered(kind: ModelType | None, *layers: Mapping[str, Any]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    sampled = {} if kind in (ModelType.CONTEXT, ModelType.DECISIONTREE) else SAMPLED
    for layer in (sampled, *layers, BRIDGED):
        merge(settings, layer)
    return settings


def find_input_type(model: type) -> Any:
    """Return what the batches of a model look like in RecBole; None if the model leaves it to its loss."""
    return InputType.USERWISE if model.__name__ in USERWISE else getattr(model, "input_type", None)


def find_dataset_class(model: str) -> Any:
    """Return the class of data set that RecBole gives a model of this name; None where it is that of its kind."""
    return {"DIEN": DIENDataset, "FEARec": ListedDataset}.get(model)
