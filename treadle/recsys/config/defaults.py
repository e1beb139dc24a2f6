"""The settings that come with Treadle: one file for all, one for each kind of model, each model and each data set."""

import os
import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from treadle.config.yaml_format import no_yaml
from treadle.errors import ConfigError
from treadle.recsys.config.core_options import SETTINGS

MERGED = ("eval_args", "train_neg_sample_args", "lgb_params", "xgb_params")
"""Settings of which a part may be given; all others are replaced as a whole."""
OVERALL = "overall"
SAMPLE = "dataset/sample"


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Plain data only, and `1e-5` is a number, which YAML 1.1 takes for text."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9][0-9_]*(?:\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def read_yaml(text: str, where: str) -> dict[str, Any]:
    """Return the settings in the text of a YAML file.

    >>> read_yaml("learning_rate: 1e-3", "a.yaml")
    {'learning_rate': 0.001}

    Raises:
        ConfigError: It is no YAML, or not a mapping of names to values.
    """
    try:
        settings = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ConfigError(no_yaml(error, where)) from error
    if settings is None:
        return {}
    if not isinstance(settings, dict):
        raise ConfigError(f"{where} must hold `name: value` lines, not a {type(settings).__name__}")
    return {str(name): value for name, value in settings.items()}


def read_settings_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the settings in a YAML file.

    Raises:
        ConfigError: It cannot be read, or is no mapping of names to values.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the config file {os.fspath(path)} cannot be read: {error.strerror}") from error
    return read_yaml(text, os.fspath(path))


@cache
def _packaged(name: str) -> dict[str, Any] | None:
    file = files("treadle.recsys.config").joinpath("properties", *f"{name}.yaml".split("/"))
    return read_yaml(file.read_text(encoding="utf-8"), f"configs/{name}.yaml") if file.is_file() else None


def packaged(name: str) -> dict[str, Any] | None:
    """Return the settings of a file that comes with Treadle, such as `dataset/sample`; None if there is none."""
    return deepcopy(_packaged(name))


def packaged_names(folder: str) -> list[str]:
    """Return which settings come with Treadle in a folder, such as `model`."""
    place = files("treadle.recsys.config").joinpath("properties", folder)
    names = [entry.name for entry in place.iterdir()] if place.is_dir() else []
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def merge(base: dict[str, Any], added: Mapping[str, Any]) -> None:
    """Put the settings of `added` over those of `base`.

    >>> base = {"eval_args": {"order": "TO", "mode": "full"}, "topk": [10]}
    >>> merge(base, {"eval_args": {"mode": "uni100"}, "topk": [20]})
    >>> base
    {'eval_args': {'order': 'TO', 'mode': 'uni100'}, 'topk': [20]}
    """
    for name, value in added.items():
        old = base.get(name)
        if name in MERGED and isinstance(old, Mapping) and isinstance(value, Mapping):
            base[name] = {**old, **value}
        else:
            base[name] = value


def framework_defaults() -> dict[str, Any]:
    """Return the settings that every run has, whatever its model and data."""
    settings: dict[str, Any] = {}
    for name in (OVERALL, SAMPLE):
        merge(settings, packaged(name) or {})
    return settings


def default_settings(
    kind: str, models: Iterable[str], dataset: str, own: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the settings that a run starts from; the more particular wins.

    Args:
        kind: The kind of model, in small letters.
        models: The names of the model's class and of those it is made from, the nearest first; it has the settings of
            the first for which there are some.
        dataset: The name of the data set.
        own: Settings that the class of the model brings itself, in the place of those that come with Treadle.
    """
    settings = framework_defaults()
    if own is None:
        own = _first_packaged("model", models)
    layers = [
        packaged(f"dataset/{dataset}"),
        packaged(f"type/{kind}"),
        own,
        packaged(f"dataset/{dataset}/{kind}"),
        _first_packaged(f"dataset/{dataset}", models),
    ]
    for layer in layers:
        merge(settings, layer or {})
    return settings


def model_settings(models: Iterable[str]) -> dict[str, Any]:
    """Return the settings that come with the first of these models for which there are some."""
    return _first_packaged("model", models) or {}


def _first_packaged(folder: str, names: Iterable[str]) -> dict[str, Any] | None:
    found = (packaged(f"{folder}/{name}") for name in names)
    return next((settings for settings in found if settings is not None), None)


def all_known_names() -> set[str]:
    """Return every setting that some file of Treadle has."""
    known = {*framework_defaults(), *SETTINGS}
    for folder in ("dataset", "type", "model"):
        for name in packaged_names(folder):
            known |= set(packaged(f"{folder}/{name}") or {})
    return known
