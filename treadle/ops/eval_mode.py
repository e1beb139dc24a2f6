"""A model that is looked at while it may be in training: each of its modules gets its mode back."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def keep_modes(model: Any) -> Iterator[None]:
    """Leave every module of `model` in the mode that it is in, whatever the block does and however it ends."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, mode in modes:
            # Not by `train`, which would reach what is below it, and which a model may have made its own.
            module.training = mode


@contextmanager
def eval_mode(model: Any) -> Iterator[None]:
    """Have `model` in evaluation mode in the block, and each of its modules in its own mode after it.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Dropout(), nn.Dropout().eval())
    >>> with eval_mode(model):
    ...     [module.training for module in model]
    [False, False]
    >>> [module.training for module in model]
    [True, False]
    """
    with keep_modes(model):
        model.eval()
        yield
