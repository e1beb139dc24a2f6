"""From a space and an architecture to a network."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import nn

from treadle.nas.expressions import FREEZING
from treadle.nas.space import Space


def freeze(model: nn.Module, architecture: Mapping[str, Any]) -> nn.Module:
    """Return the network that an architecture leaves of a space: plain modules, with no search code in them.

    The network is a copy, with copies of the weights, and shares nothing with the space; no random number is drawn. For
    new weights, freeze a space that was just built: `freeze(Net(), architecture)`.

    Args:
        model: The space, one that was searched too.
        architecture: What was decided, as `export` returns it or a JSON file holds it.

    Raises:
        ConfigError: A value is missing or cannot be taken.
    """
    space = Space(model)
    memo: dict[Any, Any] = {FREEZING: space.complete(architecture)}
    with torch.random.fork_rng(devices=[]):
        network: nn.Module = deepcopy(space.model, memo)
    return network
