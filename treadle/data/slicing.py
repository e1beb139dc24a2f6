"""A part of what a loader gives, and rows without padding."""

import math
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from treadle.data.batches import Batch
from treadle.errors import ConfigError


class DataLoaderSlice:
    """The first batches of a loader.

    >>> list(DataLoaderSlice([10, 20, 30], 2))
    [10, 20]
    >>> len(DataLoaderSlice([10, 20, 30], 5))
    3

    Args:
        dl: The loader, or any iterable of batches.
        slice_size: The most batches to give.
    """

    def __init__(self, dl: Iterable[Batch], slice_size: int) -> None:
        if isinstance(slice_size, bool) or not isinstance(slice_size, int) or slice_size < 1:
            raise ConfigError(f"DataLoaderSlice: slice_size={slice_size!r} must be a whole number above 0")
        self.dl: Any = dl
        self.slice_size = slice_size

    def __iter__(self) -> Iterator[Batch]:
        return islice(self.dl, self.slice_size)

    def __len__(self) -> int:
        try:
            return min(len(self.dl), self.slice_size)
        except TypeError:
            # A loader without a length is as good as endless: that is what it is cut for.
            return self.slice_size


def remove_padding(padded_tensor: Tensor, pad_value: float) -> Tensor:
    """Return the rows of `padded_tensor` that are not all `pad_value`.

    Rows of real data that happen to equal the padding are lost too; `Trainer.gather` knows the lengths and loses none.

    >>> remove_padding(torch.tensor([[1, 2], [0, 3], [0, 0]]), 0)
    tensor([[1, 2],
            [0, 3]])
    """
    padding = torch.isnan(padded_tensor) if math.isnan(pad_value) else padded_tensor == pad_value
    if padding.dim() > 1:
        padding = padding.flatten(start_dim=1).all(dim=1)
    return padded_tensor[~padding]
