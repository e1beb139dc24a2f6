"""Initial weights, to be used with `Module.apply`."""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn


def xavier_normal_initialization(module: nn.Module) -> None:
    """Draw the weight of an embedding or linear layer from Glorot's normal distribution, and make its bias zero.

    Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural networks", 2010.
    """
    _initialise(module, nn.init.xavier_normal_)


def small_normal_initialization(module: nn.Module) -> None:
    """Draw the weight of an embedding or linear layer with a standard deviation of 0.01, and make its bias zero."""
    _initialise(module, partial(nn.init.normal_, mean=0.0, std=0.01))


def xavier_uniform_initialization(module: nn.Module) -> None:
    """Draw the weight of an embedding or linear layer from Glorot's uniform distribution, and make its bias zero."""
    _initialise(module, nn.init.xavier_uniform_)


def _initialise(module: nn.Module, draw: Callable[[Tensor], Tensor]) -> None:
    if isinstance(module, (nn.Embedding, nn.Linear)):
        draw(module.weight)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
