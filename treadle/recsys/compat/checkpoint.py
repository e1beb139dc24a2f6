"""Checkpoints of RecBole: weights and settings, without running its pickles."""

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from treadle.checkpoint.format.safe_unpickler import Record, read_torch_file
from treadle.checkpoint.model_state import load_plain_state_dict
from treadle.errors import CheckpointError
from treadle.recsys.config.defaults import framework_defaults, model_settings
from treadle.recsys.config.values import parse_literal
from treadle.recsys.models.layers.fields import FieldEmbeddings
from treadle.recsys.trainers.loop.model_file import OtherParameters

# Weights of RecBole's models as Treadle's models of the same names have them


logger = logging.getLogger(__name__)
State = dict[str, Tensor]
NATIVE = "treadle.recsys.models."
"""Where Treadle's own models are."""
COUNTED = "it is counted from the data in one pass, and RecBole keeps it as arrays of NumPy; trainer.fit makes it anew"
SHAPED = "its layers are made otherwise here"
NOT_TAKEN = {
    "DIEN": "its activation Dice normalises over the batch, as the paper's does, and RecBole's does not",
    "DIN": "its activation Dice normalises over the batch, as the paper's does, and RecBole's does not",
    "EASE": COUNTED,
    "GCMC": SHAPED,
    "ItemKNN": COUNTED,
    "MKR": SHAPED,
    "Pop": COUNTED,
    "RecVAE": SHAPED,
    "SLIM": COUNTED,
}
"""Models that cannot take RecBole's weights, and why."""
DRAWING = {
    "KGCN": "the neighbours of entities when it is built",
    "KTUP": "preferences when it is evaluated",
    "RippleNet": "the triples around users when it is built",
}
"""Models whose numbers are not those that RecBole printed, though the weights are: what they draw."""
SETTINGS: Mapping[str, Mapping[str, Any]] = {"DMF": {"similarity": "dot"}}
"""Settings of Treadle's own that make a model what RecBole's of that name is."""


def convert_weights(model: nn.Module, state: Mapping[str, Tensor], *, name: str | None, where: str) -> State:
    """Return the weights of a checkpoint of RecBole as a model has them.

    Args:
        model: The model that is to get them.
        state: The weights.
        name: What RecBole calls the model.
        where: The file, for messages.

    Raises:
        CheckpointError: The model cannot take them; the message says why, and which one can.
    """
    native = native_name(model)
    weights = dict(state)
    if native in NOT_TAKEN:
        raise CheckpointError(f"{where} does not fit {native}: {NOT_TAKEN[native]}{bridge(name or native)}")
    if native in DRAWING:
        text = "%s: %s draws %s, so metrics are near RecBole's, not equal%s"
        logger.warning(text, where, native, DRAWING[native], bridge(name or native))
    if native is not None and native in _CHANGES:
        weights = _CHANGES[native](model, weights, where)
    if isinstance(model, FieldEmbeddings):
        _order_fields(model, weights, name or type(model).__name__, where)
    return weights


def native_name(model: nn.Module) -> str | None:
    """Return the name of Treadle's own model that this is, or is made from; None if there is none."""
    kinds = type(model).__mro__
    return next((kind.__name__ for kind in kinds if kind.__module__.startswith(NATIVE)), None)


def bridge(name: str) -> str:
    """Return, in words, how a model gets RecBole's weights as they are."""
    return f"; Config('recbole:{name}', ...) takes the weights as they are, where RecBole's package is installed"


# The order of fields ------------------------------------------------------------------------------------------


def _order_fields(model: FieldEmbeddings, weights: State, name: str, where: str) -> None:
    """Bring what is learnt of the embeddings of fields into their order here: RecBole has sequences first."""
    order = _places(model)
    if order == sorted(order):
        return
    inputs = model.field_inputs()
    if inputs is None:
        raise CheckpointError(
            f"{where}: {type(model).__name__} has fields of sequences, which come first in RecBole and last here, and "
            "does not say which weights go by the order of fields; give it a method field_inputs(), which returns "
            f"their names and dimensions, {{}} if there are none{bridge(name)}"
        )
    size = len(order)
    for key, tensor in weights.items():
        for pattern, dimensions in inputs.items():
            if not fnmatchcase(key, pattern):
                continue
            for dimension in dimensions:
                width = model.field_size()
                chosen = [place * width + step for place in order for step in range(width)]
                rest = range(size * width, tensor.shape[dimension])
                tensor = tensor.index_select(dimension, torch.tensor([*chosen, *rest], device=tensor.device))
        weights[key] = tensor


def _places(model: FieldEmbeddings) -> list[int]:
    """Return for each field, in the order here, where RecBole has it."""
    theirs = [
        *model.token_seq_field_names,
        *model.token_field_names,
        *model.float_seq_field_names,
        *model.float_field_names,
    ]
    return [theirs.index(name) for name in model.embedded_names()]


# Single models ------------------------------------------------------------------------------------------------


def _renamed(old: str, new: str) -> Callable[[nn.Module, State, str], State]:
    return lambda model, weights, where: {key.replace(old, new): tensor for key, tensor in weights.items()}


def _with_own(*names: str) -> Callable[[nn.Module, State, str], State]:
    """Return what leaves a model some tensors as it has them: RecBole does not save them."""

    def added(model: nn.Module, weights: State, where: str) -> State:
        own = model.state_dict()
        return {**{name: own[name] for name in names if name in own}, **weights}

    return added


def _dmf(model: nn.Module, weights: State, where: str) -> State:
    if getattr(model, "similarity", None) != "dot":
        raise CheckpointError(f"{where}: RecBole's DMF compares by inner products; build it with similarity: dot")
    tables = ("user_linear.weight", "item_linear.weight")
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    # A linear layer over rows of zeros and ones is a table of vectors, the other way round.
    return {
        name: tensor.T.contiguous() if name in tables and tensor.T.shape == shapes[name] else tensor
        for name, tensor in weights.items()
    }


def _relations(*, last_is_choice: bool) -> Callable[[nn.Module, State, str], State]:
    """Return what takes away the relation that RecBole counts twice."""

    def shortened(model: nn.Module, weights: State, where: str) -> State:
        table = weights.get("relation_embedding.weight")
        own = model.state_dict()["relation_embedding.weight"]
        if table is not None and len(table) == len(own) + 1:
            kept = torch.cat([table[: len(own) - 1], table[-1:]]) if last_is_choice else table[: len(own)]
            weights = {**weights, "relation_embedding.weight": kept}
        return weights

    return shortened


_CHANGES: Mapping[str, Callable[[nn.Module, State, str], State]] = {
    "CFKG": _relations(last_is_choice=True),
    "DMF": _dmf,
    "KGCN": _relations(last_is_choice=False),
    "MultiVAE": _with_own("update"),
    "NGCF": _renamed("interActTransform", "interactTransform"),
}


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
        weights = convert_weights(model, self.state_dict, name=self.model, where=self.path)
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
