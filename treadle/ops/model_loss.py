"""The loss that a model of transformers computes from its labels: which of these it is a mean over."""

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from treadle.data import Batch
from treadle.runs.pretrained import base_model

LABELS = "labels"
ITEMS = "num_items_in_batch"
"""By this name models of transformers take what the sum of their losses is divided by."""
SHIFTED = ("CausalLM", "ConditionalGeneration", "LMHead")
"""Kinds of models each of whose positions predicts the next label, unless an encoder stands beside them."""
IN_PLACE = ("MaskedLM", "TokenClassification", "SequenceClassification", "ImageClassification", "AudioClassification")


class LabelRule(NamedTuple):
    """Which labels the loss of a model is a mean over: those that are not -100.

    Attributes:
        shifted: Whether each position is to predict the next label, so that the first one of a row counts nothing.
        takes_items: Whether the model takes `num_items_in_batch`.
    """

    shifted: bool
    takes_items: bool

    def targets(self, batch: Batch) -> Tensor | None:
        """Return the labels that the loss is computed with; None where there are none, or they are no classes."""
        labels = batch.get(LABELS) if isinstance(batch, Mapping) else None
        if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.dim() == 0:
            return None
        return labels[..., 1:] if self.shifted else labels


_rules: WeakKeyDictionary[nn.Module, LabelRule | None] = WeakKeyDictionary()


def label_rule(model: nn.Module) -> LabelRule | None:
    """Return over which labels the loss of a model of transformers is a mean; None of any other model.

    It is found by the kind of the model, and compared with what it computes in the first update of a run.
    """
    if model not in _rules:
        _rules[model] = _find_rule(base_model(model))
    return _rules[model]


def _find_rule(model: Any) -> LabelRule | None:
    if not hasattr(model, "loss_type") or not hasattr(model, "config"):
        return None
    kind = f"{model.loss_type} {type(model).__name__}"
    shifted = any(one in kind for one in SHIFTED)
    if not shifted and not any(one in kind for one in IN_PLACE):
        return None
    # A decoder beside an encoder gets its inputs shifted, and its labels as they are.
    return LabelRule(shifted and not getattr(model.config, "is_encoder_decoder", False), _takes_items(model))


def _takes_items(model: Any) -> bool:
    parameters = inspect.signature(model.forward).parameters
    if ITEMS in parameters:
        return True
    # As transformers' own trainer decides it: a model that must not be told says so.
    takes_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
    return takes_any and getattr(model, "accepts_loss_kwargs", None) is not False
