"""What a recorded step can cut its batches out of by itself."""

from typing import Protocol

import torch
from torch import Tensor

from treadle.data.batches import Batch


class PlacedBatches(Protocol):
    """The samples of an epoch in their order, on the device, at an address that stays the same.

    A recorded step is told a place in that order and takes its batch from there: of a batch, only this number comes
    from the host.
    """

    @property
    def transforms(self) -> bool:
        """Whether a function of the user's changes every batch, which no recording may repeat."""

    @property
    def device(self) -> torch.device:
        """Where the samples are."""

    @property
    def address(self) -> int:
        """Where the order is kept; a recording made for another address is of no use."""

    def batch_of(self, place: int, size: int) -> Batch:
        """Return the batch of `size` samples that begins at `place`."""

    def batch_at(self, cursor: Tensor, size: int) -> Batch:
        """Return the batch of `size` samples that begins at the place `cursor`, a tensor on the device."""
