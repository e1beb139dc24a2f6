"""Weights of RecBole's models as Treadle's models of the same names have them."""

import logging
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from treadle.errors import CheckpointError
from treadle.recsys.models.layers.fields import FieldEmbeddings

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


def fitted(model: nn.Module, state: Mapping[str, Tensor], *, name: str | None, where: str) -> State:
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
