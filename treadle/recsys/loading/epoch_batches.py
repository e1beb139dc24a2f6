"""The rows of an epoch with their negatives, for a recorded step to cut its batches out of."""

from collections.abc import Callable

import torch
from torch import Tensor

from treadle.recsys.interaction import Interaction
from treadle.recsys.loading.training import TrainDataLoader


class EpochBatches:
    """An epoch of a loader, gathered and drawn at once into memory that stays where it is.

    Drawing the negatives of an epoch takes as many kernels as drawing those of one batch, and of a batch the host has
    nothing left to do but to name its place. It is one of the core's `PlacedBatches`.

    Args:
        loader: The loader, on its device, of which an epoch fits there.
    """

    transforms = False

    def __init__(self, loader: TrainDataLoader) -> None:
        self._loader = loader
        self._epoch: int | None = None
        self._positives: dict[str, Tensor] = {}
        self._negatives: Tensor | None = None
        self._offsets = torch.empty(0, dtype=torch.int64)

    @property
    def device(self) -> torch.device:
        """Where the rows are."""
        return self._loader.device

    @property
    def address(self) -> int:
        """Where the first column is kept."""
        return next(iter(self._positives.values())).data_ptr()

    def begin(self, epoch: int) -> None:
        """Bring an epoch into the memory, if it is not there."""
        if epoch == self._epoch:
            return
        positives, negatives = self._loader.whole_epoch(epoch)
        if self._epoch is None:
            self._positives, self._negatives = positives.interaction, negatives
            self._offsets = torch.arange(self._loader.step, device=self.device)
        else:
            for name, column in positives.interaction.items():
                self._positives[name].copy_(column)
            if self._negatives is not None and negatives is not None:
                self._negatives.copy_(negatives)
        self._epoch = epoch

    def batch_of(self, place: int, size: int) -> dict[str, Tensor]:
        """Return the batch of `size` rows that begins at `place`."""
        return self._batch(lambda column: column.narrow(0, place, size), size)

    def batch_at(self, cursor: Tensor, size: int) -> dict[str, Tensor]:
        """Return the batch of `size` rows that begins at the place `cursor`, a tensor on the device."""
        rows = self._offsets[:size] + cursor
        return self._batch(lambda column: column.index_select(0, rows), size)

    def _batch(self, cut: Callable[[Tensor], Tensor], size: int) -> dict[str, Tensor]:
        positives = {name: cut(column) for name, column in self._positives.items()}
        negatives = None if self._negatives is None else cut(self._negatives)
        return self._loader.completed(Interaction.of_columns(positives, size), negatives).interaction
