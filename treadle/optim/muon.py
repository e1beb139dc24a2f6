"""Which weights of a model Muon is for, and which are left to another optimizer."""

import inspect
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from treadle.errors import ConfigError

MUON: Any = getattr(torch.optim, "Muon", None)
"""Torch's optimizer that makes updates of matrices orthogonal; None in versions that have none."""


class MuonGroups(NamedTuple):
    """The trainable weights of a model, in two parts.

    Attributes:
        muon: The matrices of hidden layers.
        others: Embeddings, the output layer, norms, biases, and whatever else is no matrix.
    """

    muon: list[nn.Parameter]
    others: list[nn.Parameter]


def muon_groups(model: nn.Module, *, others: tuple[str, ...] = ()) -> MuonGroups:
    """Split the weights that are trained into those for `torch.optim.Muon` and those for an optimizer such as AdamW.

    Muon makes the update of a matrix orthogonal, which suits layers between others. Embeddings and the last linear
    layer, or the one that the model itself names as its output, go to the other optimizer, as do vectors and the
    kernels of convolutions. A weight that stands in several places is in one part, once.

    Args:
        model: The model.
        others: Names, or beginnings of names, of further weights that Muon is not to have.

    Raises:
        ConfigError: This version of torch has no Muon.

    >>> model = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 8))
    >>> [tuple(weight.shape) for weight in muon_groups(model).muon]
    [(4, 4)]
    """
    if MUON is None:
        raise ConfigError(
            f"muon_groups: torch {torch.__version__} has no torch.optim.Muon, which came with 2.9; install a newer one"
        )
    output = _output_layer(model)
    apart = [module for module in model.modules() if isinstance(module, nn.Embedding) or module is output]
    left = {id(weight) for module in apart for weight in module.parameters()}
    parts = MuonGroups([], [])
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            is_matrix = weight.dim() == 2 and id(weight) not in left and not name.startswith(others)
            (parts.muon if is_matrix else parts.others).append(weight)
    return parts


def is_muon(optimizer: Optimizer) -> bool:
    """Whether an optimizer updates as torch's Muon does: each matrix as a whole, by itself."""
    return MUON is not None and inspect.unwrap(type(optimizer).step) is inspect.unwrap(MUON.step)


def _output_layer(model: nn.Module) -> nn.Module | None:
    named = getattr(model, "get_output_embeddings", None)
    found: nn.Module | None = named() if callable(named) else None
    if found is not None:
        return found
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    return linear[-1] if linear else None
