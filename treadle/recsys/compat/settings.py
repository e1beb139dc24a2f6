"""What a model of RecBole's package starts from: its own settings, and what its way of training needs of Treadle."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from treadle.recsys.compat.datasets import ListedDataset
from treadle.recsys.compat.package import settings_of
from treadle.recsys.config_defaults import merge, model_settings
from treadle.recsys.dataset_sequential import DIENDataset
from treadle.recsys.enums import InputType, ModelType

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
    return _layered(kind, OF_MODELS.get(model, {}), settings_of(package, model))


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


def input_type_of(model: type) -> Any:
    """Return what the batches of a model look like in RecBole; None if the model leaves it to its loss."""
    return InputType.USERWISE if model.__name__ in USERWISE else getattr(model, "input_type", None)


def dataset_class_of(model: str) -> Any:
    """Return the class of data set that RecBole gives a model of this name; None where it is that of its kind."""
    return {"DIEN": DIENDataset, "FEARec": ListedDataset}.get(model)
