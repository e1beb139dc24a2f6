"""Activations that are computed again in the backward pass instead of being kept."""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

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
        blocks = _matching(model, patterns or BLOCKS)
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


def _matching(model: nn.Module, patterns: Sequence[str]) -> list[tuple[str, nn.Module]]:
    """Return the outermost modules that match: a block inside a block is recomputed with it."""
    found: list[tuple[str, nn.Module]] = []
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{outer}.") for outer, _ in found)
        names = (name, type(module).__name__)
        if name and not inside and any(fnmatchcase(one, pattern) for one in names for pattern in patterns):
            found.append((name, module))
    return found


def recompute(module: nn.Module) -> None:
    """Have `module` keep its inputs only, and compute the rest again when gradients are calculated."""
    forward = module.forward

    @wraps(forward)
    def recomputed(*args: Any, **kwargs: Any) -> Any:
        if not (module.training and torch.is_grad_enabled()):
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    module.forward = recomputed
