"""Initial weights, to be used with `Module.apply`."""

from torch import nn


def xavier_normal_initialization(module: nn.Module) -> None:
    """Draw the weight of an embedding or linear layer from Glorot's normal distribution, and make its bias zero.

    Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural networks", 2010.
    """
    if isinstance(module, (nn.Embedding, nn.Linear)):
        nn.init.xavier_normal_(module.weight)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def small_normal_initialization(module: nn.Module) -> None:
    """Draw the weight of an embedding or linear layer with a standard deviation of 0.01, and make its bias zero."""
    if isinstance(module, (nn.Embedding, nn.Linear)):
        nn.init.normal_(module.weight, 0.0, 0.01)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)


def xavier_uniform_initialization(module: nn.Module) -> None:
    """Draw the weight of an embedding or linear layer from Glorot's uniform distribution, and make its bias zero."""
    if isinstance(module, (nn.Embedding, nn.Linear)):
        nn.init.xavier_uniform_(module.weight)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
