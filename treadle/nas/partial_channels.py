"""Choices that see a part of the channels only, which saves most of a supernet's memory."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from treadle.errors import ConfigError


class PartialChannels(nn.Module):
    """A module that sees one of several parts of the channels; the others go past it.

    Afterwards the channels are shuffled, so that the next such module sees other ones. A module that halves the picture
    has the rest of the channels pooled.

    Args:
        module: What sees the part; its channels are those of the whole divided by `parts`.
        parts: How many parts there are.
    """

    def __init__(self, module: nn.Module, parts: int) -> None:
        super().__init__()
        if parts < 1:
            raise ConfigError(f"PartialChannels: parts={parts} must be at least 1")
        self.module = module
        self.parts = parts

    def forward(self, inputs: Tensor) -> Tensor:
        """Return as many channels as `inputs` has."""
        output: Tensor = through_part(inputs, self.parts, self.module)
        return output


def through_part(inputs: Tensor, parts: int, operation: Callable[[Tensor], Any]) -> Any:
    """Return what `operation` makes of the first part of the channels, with the others beside it, shuffled.

    Raises:
        ConfigError: The channels cannot be divided so.
    """
    if parts == 1:
        return operation(inputs)
    if inputs.shape[1] % parts:
        raise ConfigError(f"{inputs.shape[1]} channels cannot be divided into {parts} parts; use another width")
    count = inputs.shape[1] // parts
    seen = operation(inputs[:, :count])
    past = inputs[:, count:]
    if past.shape[2:] != seen.shape[2:]:
        past = F.max_pool2d(past, 2, ceil_mode=True)
    joined = torch.cat([seen, past], 1)
    return joined.view(len(joined), parts, count, *joined.shape[2:]).transpose(1, 2).flatten(1, 2)
