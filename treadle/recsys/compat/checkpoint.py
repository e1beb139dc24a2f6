"""Checkpoints of RecBole: weights and settings, without running its pickles."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from treadle.checkpoint.model_state import load_plain_state_dict
from treadle.checkpoint.pickled import Record, read_torch_file
from treadle.errors import CheckpointError
from treadle.recsys.compat.weights import SETTINGS, bridge, fitted, native_name
from treadle.recsys.config_defaults import framework_defaults, model_settings
from treadle.recsys.config_values import parse_literal
from treadle.recsys.trainers.other_parameters import OtherParameters


@dataclass(frozen=True)
class ImportedCheckpoint:
    """What a checkpoint of RecBole holds.

    Attributes:
        path: The file.
        model: The name of the model, if the file has it.
        dataset: The name of the data set, if the file has it.
        settings: The settings that RecBole's user gave, and those of the model that are others here by default, as
            plain data: pass them as `config_dict`.
        epoch: The epoch that it was saved in.
        best_valid_score: The best score until then.
        state_dict: The weights.
        other_parameter: What belongs to the model beside them, such as propagated embeddings.
    """

    path: str
    model: str | None
    dataset: str | None
    settings: Mapping[str, Any]
    epoch: int | None
    best_valid_score: float | None
    state_dict: Mapping[str, Tensor]
    other_parameter: Mapping[str, Any]

    def load_into(self, model: nn.Module) -> None:
        """Give a model these weights, as it has them: fields, say, are in another order here.

        Raises:
            CheckpointError: They do not fit it; the message says which model they fit.
        """
        weights = fitted(model, self.state_dict, name=self.model, where=self.path)
        try:
            load_plain_state_dict(model, weights, where=self.path)
        except CheckpointError as error:
            hint = "" if self.model is None or native_name(model) is None else bridge(self.model)
            raise CheckpointError(f"{error}{hint}") from error
        if self.other_parameter and hasattr(model, "load_other_parameter"):
            device = next((one.device for one in model.parameters()), None)
            if device is not None:
                OtherParameters(model, device).load_state_dict(dict(self.other_parameter))


def import_checkpoint(path: str | os.PathLike[str], model: nn.Module | None = None) -> ImportedCheckpoint:
    """Return what is in a checkpoint of RecBole, and give its weights to a model if there is one.

    The file is read as data: nothing in it is run, and RecBole need not be installed. Ids of users, items, entities and
    relations are those of RecBole's data set; Treadle gives the same files the same ids, under the same settings of
    loading and filtering.

    Args:
        path: The file that RecBole's trainer saved.
        model: The model that gets the weights.

    Raises:
        CheckpointError: The file is damaged, or no checkpoint of RecBole; or its weights do not fit the model.
    """
    found = read_torch_file(path)
    weights = found.get("state_dict") if isinstance(found, dict) else None
    if not isinstance(weights, dict):
        held = sorted(map(str, found)) if isinstance(found, dict) else type(found).__name__
        raise CheckpointError(f"{os.fspath(path)} is no checkpoint of RecBole: there is no state_dict in {held}")
    own = _attributes(found.get("config"))
    given = {**_model_settings(own), **_plain(own.get("external_config_dict"))}
    others = found.get("other_parameter")
    imported = ImportedCheckpoint(
        path=os.fspath(path),
        model=_text(own.get("model")),
        dataset=_text(own.get("dataset")),
        settings={name: value for name, value in given.items() if name not in ("model", "dataset")},
        epoch=found.get("epoch"),
        best_valid_score=_number(found.get("best_valid_score")),
        state_dict={name: value for name, value in weights.items() if isinstance(value, Tensor)},
        other_parameter=_plain(others),
    )
    if model is not None:
        imported.load_into(model)
    return imported


def _model_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the model itself that are others here by default, whatever version of RecBole it was."""
    name = _text(config.get("model"))
    final = _plain(config.get("final_config_dict"))
    found: dict[str, Any] = dict(SETTINGS.get(name or "", {}))
    for key, ours in model_settings([name] if name else []).items():
        theirs = final.get(key)
        theirs = parse_literal(theirs) if isinstance(theirs, str) and not isinstance(ours, str) else theirs
        known = theirs is not None and ours is not None and not isinstance(ours, Mapping)
        if known and key not in framework_defaults() and theirs != ours:
            found[key] = theirs
    return found


def _attributes(config: Any) -> dict[str, Any]:
    state = config.state if isinstance(config, Record) and config.kind.startswith("recbole.") else None
    if isinstance(state, tuple) and state:
        state = state[0]
    return state if isinstance(state, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_plain(key) and _is_plain(item) for key, item in value.items())
    if isinstance(value, (list, tuple, set)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (str, int, float, bool, Tensor))


def _plain(values: Any) -> dict[str, Any]:
    """Return what is plain data or tensors, by name."""
    return {str(name): value for name, value in (values or {}).items() if _is_plain(value)}
