"""What happens to the sequences of a training batch: masked, cropped, reordered or turned about.

Random choices depend on the seed and on the place of a row in the epoch, so that a batch is the same whoever makes it.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from treadle.data.seeds import fold_seed
from treadle.errors import ConfigError, did_you_mean
from treadle.recsys.config.configurator import Config
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.data.sampling.counter_random import random_below, random_bits, random_unit, row_counters

Transform = Callable[[Interaction, int, Tensor], Interaction]
"""Takes a batch, a seed and the place of each row in the epoch, and returns the batch with further columns."""


def make_transform(config: Config, dataset: Any) -> Transform | None:
    """Return the transform that the setting `transform` names; None if it names none.

    A function in the place of a name is called with the data set and the batch, and returns the batch.

    Raises:
        ConfigError: There is none of that name.
    """
    return named_transform(config["transform"], config, dataset)


def named_transform(named: Any, config: Config, dataset: Any) -> Transform | None:
    """Return the transform of a name, or of a function; None for None."""
    if named is None:
        return None
    if callable(named):
        return lambda batch, _, __: named(dataset, batch)
    kinds: dict[str, Callable[[Config, Any], Transform]] = {
        "mask_itemseq": MaskItemSequence,
        "inverse_itemseq": InverseItemSequence,
        "crop_itemseq": CropItemSequence,
        "reorder_itemseq": ReorderItemSequence,
    }
    if named not in kinds:
        near = did_you_mean(str(named), kinds) or f"; there are {list(kinds)}, or a function of your own"
        raise ConfigError(f"transform={named!r} does not exist{near}")
    return kinds[named](config, dataset)


class BatchTransform:
    """A transform as RecBole's loaders call it: with the data set and a batch.

    Args:
        config: The settings.
        named: Which transform.
    """

    def __init__(self, config: Config, named: Any) -> None:
        self._config, self._named = config, named
        self._made: tuple[Any, Transform | None] | None = None

    def __call__(self, dataset: Any, interaction: Interaction) -> Interaction:
        """Return the batch, transformed; random choices are drawn by torch's generator."""
        if self._made is None or self._made[0] is not dataset:
            self._made = (dataset, named_transform(self._named, self._config, dataset))
        transform = self._made[1]
        if transform is None:
            return interaction
        seed = int(torch.randint(1 << 62, ()))
        return transform(interaction, seed, torch.arange(len(interaction)))


def construct_transform(config: Config) -> BatchTransform:
    """Return what a batch goes through as the setting `transform` says; with none it stays as it is."""
    return BatchTransform(config, config["transform"])


class SequenceTransform:
    """What all transforms know: the columns with items and lengths, and how to draw numbers for them."""

    def __init__(self, config: Config, dataset: Any) -> None:
        self._items = f"{config['ITEM_ID_FIELD']}{config['LIST_SUFFIX']}"
        self._lengths = str(config["ITEM_LIST_LENGTH_FIELD"])

    @staticmethod
    def _bits(seed: int, places: Tensor, width: int) -> Tensor:
        columns = torch.arange(width, device=places.device)
        return random_bits(seed, row_counters(places.unsqueeze(1), columns))

    def _share(self, config: Config, name: str) -> float:
        value = config[name]
        if not isinstance(value, (int, float)) or not 0 < value <= 1:
            raise ConfigError(f"{name}={value!r} must be a share above 0 and up to 1: transform needs it")
        return float(value)


class MaskItemSequence(SequenceTransform):
    """Hides some items of each sequence, for a model to find.

    Adds `Mask_item_id_list`, the sequence with the number of items in the place of hidden ones; `Pos_item_id`, what was
    hidden, with zeros before it; `MASK_INDEX`, where; and `Neg_item_id`, items that the sequence does not have, unless
    `loss_type` is 'CE' and `mask_negatives` is not set. A share `ft_ratio` of the rows hide their last item only.
    """

    def __init__(self, config: Config, dataset: Any) -> None:
        super().__init__(config, dataset)
        item = str(config["ITEM_ID_FIELD"])
        self._mask_ratio = self._share(config, "mask_ratio")
        self._last_ratio = float(config["ft_ratio"] or 0.0)
        self._width = max(int(self._mask_ratio * int(config["MAX_ITEM_LIST_LENGTH"])), 1)
        self._number = int(dataset.num(item))
        self._draws = config["loss_type"] != "CE" or bool(config["mask_negatives"])
        self._names = {
            "MASK_ITEM_SEQ": f"Mask_{self._items}",
            "POS_ITEMS": f"Pos_{item}",
            "NEG_ITEMS": f"Neg_{item}",
            "MASK_INDEX": "MASK_INDEX",
        }
        for setting, name in self._names.items():
            config[setting] = name

    def __call__(self, batch: Interaction, seed: int, places: Tensor) -> Interaction:
        items, lengths = batch[self._items], batch[self._lengths]
        numbers = random_unit(self._bits(seed, places, items.shape[1] + 1))
        steps = torch.arange(items.shape[1], device=items.device)
        inside = steps < lengths.unsqueeze(1)
        last = steps == lengths.unsqueeze(1) - 1
        only_last = numbers[:, -1:] < self._last_ratio
        hidden = torch.where(only_last, last, (numbers[:, :-1] < self._mask_ratio) & inside)
        index, there = _last_places(hidden, self._width)
        positives = items.gather(1, index).masked_fill(~there, 0)
        batch.update(
            {
                self._names["MASK_ITEM_SEQ"]: items.masked_fill(hidden, self._number),
                self._names["POS_ITEMS"]: positives,
                self._names["MASK_INDEX"]: index.masked_fill(~there, 0),
            }
        )
        if self._draws:
            bits = self._bits(fold_seed(seed, "others"), places, self._width)
            negatives = other_items(items, self._number, bits).masked_fill(~there, 0)
            batch.update({self._names["NEG_ITEMS"]: negatives})
        return batch


def other_items(items: Tensor, number: int, bits: Tensor) -> Tensor:
    """Return items that are not in the sequence of their row, each equally likely.

    The r-th item that a row lacks is r plus the number of the row's items before it: of its different items in
    order, those whose id less their place is at most r.

    Args:
        items: The sequences, with zeros behind them.
        number: How many item ids there are, padding included.
        bits: Random bits `[rows, n]`, for `n` items of each row.
    """
    ordered = items.sort(dim=1).values
    again = torch.cat([ordered[:, :1] == 0, (ordered[:, 1:] == ordered[:, :-1]) | (ordered[:, 1:] == 0)], dim=1)
    own = ordered.masked_fill(again, number).sort(dim=1).values
    lacking = (number - 1 - (own < number).sum(dim=1, keepdim=True)).clamp(min=1)
    ranks = 1 + random_below(bits, lacking)
    before = own - torch.arange(own.shape[1], device=own.device)
    passed = (before.unsqueeze(1) <= ranks.unsqueeze(2)) & (own < number).unsqueeze(1)
    return (ranks + passed.sum(dim=2)).clamp_(max=number - 1)


def _last_places(marked: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Return where the last `width` marks of each row are, in order, and which of these places have a mark."""
    steps = torch.arange(marked.shape[1], device=marked.device)
    order = torch.where(marked, steps, -1).sort(dim=1).values[:, -width:]
    return order.clamp(min=0), order >= 0


class InverseItemSequence(SequenceTransform):
    """Adds `Inverse_item_id_list`: the sequence with its zeros before it."""

    def __init__(self, config: Config, dataset: Any) -> None:
        super().__init__(config, dataset)
        self._name = f"Inverse_{self._items}"
        config["INVERSE_ITEM_SEQ"] = self._name

    def __call__(self, batch: Interaction, seed: int, places: Tensor) -> Interaction:
        items, lengths = batch[self._items], batch[self._lengths]
        width = items.shape[1]
        from_end = torch.arange(width, device=items.device) - (width - lengths.unsqueeze(1))
        batch.update({self._name: items.gather(1, from_end.clamp(min=0)).masked_fill(from_end < 0, 0)})
        return batch


class CropItemSequence(SequenceTransform):
    """Adds `Crop_item_id_list`, a random stretch of a share `eta` of each sequence, and its length."""

    def __init__(self, config: Config, dataset: Any) -> None:
        super().__init__(config, dataset)
        self._ratio = self._share(config, "eta")
        self._name = f"Crop_{self._items}"
        self._length_name = self._name + self._lengths
        config["CROP_ITEM_SEQ"], config["CROP_ITEM_SEQ_LEN"] = self._name, self._length_name

    def __call__(self, batch: Interaction, seed: int, places: Tensor) -> Interaction:
        items, lengths = batch[self._items], batch[self._lengths]
        begin, length = _stretch(self._bits(seed, places, 1)[:, 0], lengths, self._ratio)
        steps = torch.arange(items.shape[1], device=items.device)
        moved = items.gather(1, (begin.unsqueeze(1) + steps).clamp(max=items.shape[1] - 1))
        batch.update(
            {
                self._name: moved.masked_fill(steps >= length.unsqueeze(1), 0),
                self._length_name: length,
            }
        )
        return batch


class ReorderItemSequence(SequenceTransform):
    """Adds `Reorder_item_id_list`: each sequence with a random stretch of a share `beta` in another order."""

    def __init__(self, config: Config, dataset: Any) -> None:
        super().__init__(config, dataset)
        self._ratio = self._share(config, "beta")
        self._name = f"Reorder_{self._items}"
        config["REORDER_ITEM_SEQ"] = self._name

    def __call__(self, batch: Interaction, seed: int, places: Tensor) -> Interaction:
        items, lengths = batch[self._items], batch[self._lengths]
        width = items.shape[1]
        bits = self._bits(seed, places, width + 1)
        begin, length = _stretch(bits[:, 0], lengths, self._ratio)
        steps = torch.arange(width, device=items.device).expand_as(items)
        inside = (steps >= begin.unsqueeze(1)) & (steps < (begin + length).unsqueeze(1))
        # What stays has its own place as its key; what moves, the place of the stretch and a random fraction.
        keys = torch.where(inside, begin.unsqueeze(1) + random_unit(bits[:, 1:]), steps.double())
        batch.update({self._name: items.gather(1, keys.argsort(dim=1, stable=True))})
        return batch


def _stretch(bits: Tensor, lengths: Tensor, ratio: float) -> tuple[Tensor, Tensor]:
    """Return where a random stretch of a share of each sequence begins, and how long it is."""
    length = (lengths * ratio).long()
    return random_below(bits, lengths - length + 1), length


# What is hidden of sequences for a model to find, before it learns to say what comes next


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
        names = pretrain_columns(self._items)
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


def pretrain_columns(item_seq: str) -> tuple[str, str, str, str, str]:
    """Return the columns that `HideItemsAndSegments` adds, by the name of the column with the sequences."""
    return (
        f"Mask_{item_seq}",
        f"Neg_{item_seq}",
        f"Mask_segment_{item_seq}",
        f"Pos_segment_{item_seq}",
        f"Neg_segment_{item_seq}",
    )
