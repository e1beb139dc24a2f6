"""Batches of whole sequences, several of them in a row where they are short."""

from typing import Self

import numpy as np
import torch
from torch import Tensor

from treadle.data.seeds import fold_seed
from treadle.data.sources.packed import best_fit
from treadle.errors import ConfigError, check_choice
from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataloader.abstract_dataloader import AbstractDataLoader
from treadle.recsys.data.dataloader.sequence_dataloader import POSITIVES
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.data.sampling.counter_random import random_bits
from treadle.recsys.data.sequential_dataset import SequentialDataset

POSITION = "position_in_sequence"
"""The column with the place of each item in its own sequence; 0 where there is no item."""
LENGTH = "length_of_sequence"
"""The column with the length of the sequence that each item is in; 0 where there is no item."""
NEGATIVE_SEED = "negative_seed"
"""The column with the seed of a batch's negatives: the same in all its rows, and on all processes."""
PLACE = "place_in_epoch"
"""The column with the place of each row in the order of the epoch."""
LAYOUTS = ("packed", "padded")


class PackedSequenceDataLoader(AbstractDataLoader):
    """Sequences to train on at all their positions: one sample a user, and a loss at each item.

    A user's interactions are one sequence; longer ones than `MAX_ITEM_LIST_LENGTH` are cut, from the end, into several.
    With `sequence_layout: packed` the short ones share rows, which are nearly full: which sequences do is settled once,
    from the seed. With `padded` each has a row of its own.

    A batch has, all `[rows, length]`: `item_id_list` and the other columns of a history; `pos_item_id_list`, the item
    after each; and where in its sequence each item is, and how long that is. All are 0 where nothing is. For negatives,
    which the model draws where it is, each row has the seed of its batch and its place in the epoch.
    `train_batch_size` counts positions.

    Args:
        config: The settings.
        dataset: The data for training.
        shuffle: Whether each epoch has an order of its own.

    Attributes:
        fill: What share of the places of all rows has an item.

    Raises:
        ConfigError: `sequence_layout` is no layout, or the data brings its own histories.
    """

    _dataset: SequentialDataset

    def __init__(self, config: Config, dataset: SequentialDataset, shuffle: bool = False) -> None:
        layout = config["sequence_layout"]
        check_choice("sequence_layout", layout, LAYOUTS)
        if dataset.flat is None:
            raise ConfigError(
                f"sequence_layout={layout!r} needs the interactions themselves, and {dataset.dataset_name!r} brings "
                "histories of its own; leave their column out of load_col, or take a model such as SASRec"
            )
        self._begins, self._lengths = dataset.sequences(last_only=bool(config["train_last_stretch_only"]))
        self._width = dataset.max_item_list_len
        self._suffix = str(config["LIST_SUFFIX"])
        alone = [[one] for one in range(len(self._begins))]
        rows = self._shared_rows(int(config["seed"])) if layout == "packed" else alone
        self._owners, self._columns = self._layout(rows)
        self.fill = int(self._lengths.sum()) / max(self._owners.numel(), 1)
        super().__init__(config, dataset, None, shuffle)

    def _shared_rows(self, seed: int) -> list[list[int]]:
        """Return which sequences share a row; of equally long ones the seed decides, not their order."""
        generator = torch.Generator().manual_seed(fold_seed(seed, "packing"))
        order = torch.randperm(len(self._lengths), generator=generator)
        rows = best_fit(self._lengths[order].tolist(), self._width)
        numbers = order.tolist()
        return [[numbers[one] for one in row] for row in rows]

    def _layout(self, rows: list[list[int]]) -> tuple[Tensor, Tensor]:
        """Return which sequence each place of the rows belongs to, -1 for none, and where in its row each begins."""
        flat = np.concatenate([np.asarray(row, np.int64) for row in rows]) if rows else np.zeros(0, np.int64)
        lengths = self._lengths.numpy()[flat]
        ends = np.cumsum(lengths)
        counts = np.fromiter(map(len, rows), np.int64, len(rows))
        # What lies before the first sequence of each row, laid end to end.
        first = np.cumsum(counts) - counts
        before = np.repeat((ends - lengths)[first], counts) if len(rows) else ends
        columns = ends - lengths - before
        owners = np.full(len(rows) * self._width, -1, np.int32)
        starts = np.repeat(np.arange(len(rows)), counts) * self._width + columns
        places = np.repeat(starts - (ends - lengths), lengths) + np.arange(int(lengths.sum()))
        owners[places] = np.repeat(flat, lengths)
        of_sequence = np.zeros(len(self._lengths), np.int64)
        of_sequence[flat] = columns
        return torch.from_numpy(owners).view(len(rows), self._width), torch.from_numpy(of_sequence)

    def _count_rows(self) -> int:
        return len(self._owners)

    def _init_batch_size_and_step(self) -> None:
        self.set_batch_size(int(self.config["train_batch_size"]))

    def set_batch_size(self, batch_size: int) -> None:
        """Take another number of positions for a batch."""
        super().set_batch_size(batch_size)
        self.step = max(batch_size // self._width, 1)
        self._batch_size = self.step * self._width

    def to(self, device: torch.device | str) -> Self:
        """Keep the data on `device`, and make the batches there; returns the loader itself."""
        super().to(device)
        self._begins, self._lengths = self._begins.to(self.device), self._lengths.to(self.device)
        self._owners, self._columns = self._owners.to(self.device), self._columns.to(self.device)
        return self

    def make_batch(self, rows: Tensor, places: Tensor, epoch: int) -> Interaction:
        """Return these rows."""
        data = self._dataset
        assert data.flat is not None, "the data brings its own histories"
        owners = self._owners[rows].long()
        inside, owner = owners >= 0, owners.clamp(min=0)
        steps = torch.arange(self._width, device=owners.device)
        position = (steps - self._columns[owner]).masked_fill_(~inside, 0)
        source = self._begins[owner] + position
        columns = {
            f"{field}{self._suffix}": _inside(column[source], inside)
            for field, column in data.flat.interaction.items()
            if field != data.uid_field
        }
        item = str(data.iid_field)
        columns[f"{POSITIVES}{item}{self._suffix}"] = _inside(data.flat[item][source + inside], inside)
        columns[POSITION], columns[LENGTH] = position, _inside(self._lengths[owner], inside)
        columns[NEGATIVE_SEED] = random_bits(fold_seed(self._seed, "negatives", epoch), places // self.step)
        columns[PLACE] = places
        return Interaction.of_columns(columns, len(rows))


def _inside(values: Tensor, inside: Tensor) -> Tensor:
    """Return values with 0 where nothing is."""
    return values.masked_fill(~inside.view(*inside.shape, *[1] * (values.dim() - 2)), 0)
