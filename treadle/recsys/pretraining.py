"""What is hidden of sequences for a model to find, before it learns to say what comes next."""

from typing import Any

import torch
from torch import Tensor

from treadle.data.seeds import fold_seed
from treadle.recsys.config import Config
from treadle.recsys.interaction import Interaction
from treadle.recsys.sampling.counter_random import random_below, random_unit
from treadle.recsys.transforms import SequenceTransform, other_items


class HideItemsAndSegments(SequenceTransform):
    """Hides items of each sequence one by one, and a segment of it as a whole.

    Adds, all as long as the sequence:
    - `Mask_item_id_list`: the sequence, a share `mask_ratio` of its items hidden, and its last one always;
    - `Neg_item_id_list`: for each position an item that the sequence does not have;
    - `Mask_segment_item_id_list`: the sequence without a stretch of up to half of it;
    - `Pos_segment_item_id_list`: that stretch, with everything else hidden;
    - `Neg_segment_item_id_list`: in its place a stretch of what users chose elsewhere.

    What is hidden is the number of items. Of a sequence with one item no segment is hidden.

    Args:
        config: The settings.
        dataset: The data for training.
    """

    def __init__(self, config: Config, dataset: Any) -> None:
        super().__init__(config, dataset)
        self._mask_ratio = self._share(config, "mask_ratio")
        self._number = int(dataset.num(str(config["ITEM_ID_FIELD"])))
        self._others: Tensor = dataset.items_in_order()

    def __call__(self, batch: Interaction, seed: int, places: Tensor) -> Interaction:
        items, lengths = batch[self._items], batch[self._lengths].unsqueeze(1)
        steps = torch.arange(items.shape[1], device=items.device)
        drawn = random_unit(self._bits(seed, places, items.shape[1])) < self._mask_ratio
        hidden = (drawn & (steps < lengths)) | (steps == lengths - 1)
        bits = self._bits(fold_seed(seed, "others"), places, items.shape[1])
        names = pretraining_columns(self._items)
        columns = {
            names[0]: items.masked_fill(hidden, self._number),
            names[1]: other_items(items, self._number, bits),
        }
        segments = self._segments(items, lengths, steps, self._bits(fold_seed(seed, "segments"), places, 3))
        batch.update({**columns, **dict(zip(names[2:], segments, strict=True))})
        return batch

    def _segments(self, items: Tensor, lengths: Tensor, steps: Tensor, bits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the sequences without a segment, their segments, and segments of others."""
        self._others = self._others.to(items.device)
        half = lengths // 2
        size = torch.where(half > 0, 1 + random_below(bits[:, :1], half.clamp(min=1)), 0)
        begin = random_below(bits[:, 1:2], lengths - size + 1)
        inside = (steps >= begin) & (steps < begin + size)
        real = steps < lengths
        elsewhere = random_below(bits[:, 2:3], (len(self._others) - size).clamp(min=0) + 1) + steps - begin
        others = self._others[elsewhere.clamp(0, len(self._others) - 1)]
        masked = torch.where(real, self._number, 0)
        return (
            items.masked_fill(inside, self._number),
            torch.where(inside, items, masked),
            torch.where(inside, others, masked),
        )


def pretraining_columns(item_seq: str) -> tuple[str, str, str, str, str]:
    """Return the columns that `HideItemsAndSegments` adds, by the name of the column with the sequences."""
    return (
        f"Mask_{item_seq}",
        f"Neg_{item_seq}",
        f"Mask_segment_{item_seq}",
        f"Pos_segment_{item_seq}",
        f"Neg_segment_{item_seq}",
    )
