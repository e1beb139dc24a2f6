"""Activations that are computed again in the backward pass instead of being kept."""

from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn

from treadle.activation_checkpointing import matching_any, recompute
from treadle.errors import ConfigError

BLOCKS = ("TransformerLayer", "TransformerEncoderLayer", "TransformerDecoderLayer", "*Block")
"""The classes of modules that are recomputed where nobody says which."""


def set_activation_checkpoint(model: nn.Module, patterns: Sequence[str] | None = None) -> list[str]:
    """Have blocks of `model` computed again in the backward pass; return their names.

    A model with a method `set_activation_checkpoint` decides itself: it may return the modules to recompute, or do
    everything and return None.

    Args:
        model: The model; its blocks are changed in place, their parameters keep their names.
        patterns: Patterns for the names or classes of the blocks.

    Raises:
        ConfigError: No module matches.
    """
    own = getattr(model, "set_activation_checkpoint", None)
    if callable(own) and patterns is None:
        chosen = _ask(model, own)
        if chosen is None:
            return []
        blocks = [(name, module) for name, module in model.named_modules() if any(module is one for one in chosen)]
    else:
        blocks = matching_any(model, patterns or BLOCKS)
    if not blocks:
        classes = sorted({type(module).__name__ for module in model.modules()})
        raise ConfigError(
            f"train.activation_checkpoint.enabled: no module of {type(model).__name__} matches "
            f"{list(patterns or BLOCKS)}; name some of {classes} in train.activation_checkpoint.modules, or give the "
            "model a method set_activation_checkpoint that returns them"
        )
    for _, module in blocks:
        recompute(module)
    return [name for name, _ in blocks]


def _ask(model: nn.Module, own: Any) -> Iterable[nn.Module] | None:
    # Written for LiBai it is a static method of the model; written for us it is an ordinary one.
    static = isinstance(vars(type(model)).get("set_activation_checkpoint"), staticmethod)
    chosen = own(model) if static else own()
    return None if chosen is None else list(chosen)
