"""Batches to train on: interactions, and items that were drawn against them."""

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor

from treadle.data.seeds import fold_seed
from treadle.errors import ConfigError
from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataloader.abstract_dataloader import AbstractDataLoader
from treadle.recsys.data.dataloader.custom_sampling import CustomNegatives, is_custom_sampler
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.data.sequential_dataset import SequentialDataset
from treadle.recsys.data.transforms import Transform, make_transform
from treadle.recsys.enums import FeatureSource, FeatureType, InputType
from treadle.recsys.models.settings import choice

# Rows of training data that are drawn by way of their users


class RowsOfUsers:
    """Draws a user, all of them equally often, and then one of the user's rows.

    So a user with few interactions counts as much as one with many: as in a metric that is a mean over users, and as in
    the papers of BPR and LightGCN.

    Args:
        users: The user of each row, on the host.
    """

    def __init__(self, users: Tensor) -> None:
        self._rows = users.argsort(stable=True)
        counts = users.bincount()
        self._users = counts.nonzero().squeeze(1)
        self._counts = counts[self._users]
        self._starts = self._counts.cumsum(0) - self._counts

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Return `count` rows."""
        drawn = torch.randint(len(self._users), (count,), generator=generator)
        # In double precision the product stays below the count, however many rows a user has.
        shares = torch.rand(count, generator=generator, dtype=torch.float64)
        within = (shares * self._counts[drawn]).long()
        return self._rows[self._starts[drawn] + within]


# Batches of users, for models that take a user's whole history at once


class UserDataLoader(AbstractDataLoader):
    """Batches of the users who have interactions to train on.

    Args:
        config: The settings.
        dataset: The data for training.
        sampler: Not used; autoencoders need no negatives.
        shuffle: Whether each epoch has an order of its own.
    """

    def __init__(self, config: Config, dataset: Dataset, sampler: Any = None, shuffle: bool = True) -> None:
        self._users = torch.unique(dataset.user_item_pairs()[0])
        super().__init__(config, dataset, sampler, shuffle)

    def _count_rows(self) -> int:
        return len(self._users)

    def _init_batch_size_and_step(self) -> None:
        self.set_batch_size(int(self.config["train_batch_size"]))

    def make_batch(self, rows: Tensor, places: Tensor, epoch: int) -> Interaction:
        """Return the users of these rows."""
        self._users = self._users.to(self.device)
        return Interaction.of_columns({str(self._dataset.uid_field): self._users[rows]}, len(rows))


# Batches that are cut out of rows, many at a time


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


AT_ONCE = (1 << 28, 1 << 31)
"""How many bytes the rows of an epoch may take, on the host and on a device, to be gathered at once."""


class TrainDataLoader(AbstractDataLoader):
    """Batches of interactions, each with its negatives if there are any.

    Point-wise, the negatives follow the positives as further rows, and `label` tells them apart. Pair-wise they are
    further columns: `neg_item_id`, of the shape `[rows]`, or `[rows, n]` for several, and the same for features of
    items. `train_batch_size` counts negatives.

    Args:
        config: The settings.
        dataset: The data for training.
        sampler: Where negatives come from: `Negatives`, or a sampler of RecBole's kind; None for none.
        shuffle: Whether each epoch has an order of its own.
    """

    transforms = True

    def __init__(self, config: Config, dataset: Dataset, sampler: Any = None, shuffle: bool = False) -> None:
        if is_custom_sampler(sampler):
            sampler = CustomNegatives(sampler, str(dataset.uid_field), str(dataset.iid_field))
        self._format: InputType = config["MODEL_INPUT_TYPE"]
        self._arguments: dict[str, Any] = config["train_neg_sample_args"]
        self._prefix = str(config["NEG_PREFIX"])
        self._label = str(config["LABEL_FIELD"])
        self._transform = make_transform(config, dataset)
        self._draws = sampler is not None and self._arguments["distribution"] != "none"
        self.times = self._rows_for_a_positive()
        self._flat = self._arguments.get("layout") == "flat"
        self._draws_hard = self._draws and bool(self._arguments["dynamic"])
        self._epoch: tuple[int, Interaction, Tensor | None] | None = None
        self._complete: Slices | None = None
        by_users = choice(config, "train_sampling", ("rows", "users")) == "users"
        self._by_users = RowsOfUsers(dataset.inter_feat[str(dataset.uid_field)].cpu()) if by_users else None
        super().__init__(config, dataset, sampler, shuffle)
        self._announce_fields()

    def _rows_for_a_positive(self) -> int:
        if not self._draws:
            return 1
        count = int(self._arguments["sample_num"])
        return 1 + count if self._format is InputType.POINTWISE else count

    def _announce_fields(self) -> None:
        """Make the columns that batches have besides those of the data known to the data set."""
        data = self._dataset
        if not self._draws:
            return
        if self._format is InputType.POINTWISE:
            data.set_field_property(self._label, FeatureType.FLOAT, FeatureSource.INTERACTION, 1)
            return
        for name in data.get_item_feature().columns:
            data.copy_field_property(self._prefix + name, name)

    def _count_rows(self) -> int:
        return len(self._dataset)

    def _init_batch_size_and_step(self) -> None:
        self.set_batch_size(int(self.config["train_batch_size"]))

    def to(self, device: torch.device | str) -> Self:
        """Keep the data on `device`, and make the batches there; returns the loader itself."""
        self._epoch = None
        return super().to(device)

    def _draw_order(self, generator: torch.Generator) -> Tensor:
        if self._by_users is None:
            return super()._draw_order(generator)
        return self._by_users.draw(self.sample_size, generator)

    def transformed(self, transform: Transform) -> Self:
        """Return a loader of the same rows, with another transform of their sequences."""
        made = super().transformed(transform)
        made._epoch = None
        return made

    def set_batch_size(self, batch_size: int) -> None:
        """Take another number of rows for a batch, negatives included."""
        super().set_batch_size(batch_size)
        self.step = max(batch_size // self.times, 1)
        self._batch_size = self.step * self.times
        self._epoch = None

    def batch_at(self, epoch: int, index: int, *, rank: int = 0, size: int = 1) -> Interaction:
        """Return the batch numbered `index` of an epoch, or the share of one of several processes."""
        if self.overridden_verbs:
            batch: Interaction = super().batch_at(epoch, index, rank=rank, size=size)
            return batch
        first, last = self._share(index, rank, size)
        if self._epoch is None or self._epoch[0] != epoch:
            if not self.fits_at_once:
                places = torch.arange(first, last, device=self.device)
                return self.make_batch(self._rows(epoch, first, last), places, epoch)
            self._begin_epoch(epoch)
        assert self._epoch is not None
        if self._complete is not None and size == 1:
            return self._complete.batch(index)
        _, positives, negatives = self._epoch
        cut = positives.take_rows(first, last)
        if self._complete is None:
            cut = self.completed(cut, None if negatives is None else negatives[first:last])
        return cut

    def _begin_epoch(self, epoch: int) -> None:
        """Gather and draw an epoch, and complete its batches all at once where a batch is some of the rows."""
        rows, negatives = self.whole_epoch(epoch)
        self._complete = None
        if self._completes_by_row():
            rows, negatives = self.completed(rows, negatives), None
            self._complete = Slices(rows, self.step)
        self._epoch = (epoch, rows, negatives)

    def _completes_by_row(self) -> bool:
        """Whether what a batch gets besides is further columns, not further rows, and fits for a whole epoch."""
        data = self._dataset
        further_rows = self._draws and (self._flat or self._format is InputType.POINTWISE)
        own = type(self).completed is TrainDataLoader.completed
        of_user, of_item = map(_bytes_of_row, (data.user_feat, data.item_feat))
        row = _bytes_of_row(data.inter_feat) + of_user + of_item
        if self._draws:
            row += self.times * (8 + of_item)
        return own and not further_rows and row * self.sample_size <= AT_ONCE[self.device.type != "cpu"]

    def completed(self, positives: Interaction, negatives: Tensor | None) -> Interaction:
        """Return the batch of some rows of `whole_epoch`: with features of users and items, and with negatives."""
        batch = self._dataset.join(positives)
        return batch if negatives is None else self._with_negatives(batch, negatives)

    @property
    def fits_at_once(self) -> bool:
        """Whether an epoch can be gathered and drawn at once, so that a batch is only cut out of it."""
        by_batch = isinstance(self._dataset, SequentialDataset) or self._draws_hard or bool(self.overridden_verbs)
        if self._transform is not None or by_batch:
            return False
        row = _bytes_of_row(self._dataset.inter_feat) + 8 * self.times
        return row * self.sample_size <= AT_ONCE[self.device.type != "cpu"]

    def whole_epoch(self, epoch: int) -> tuple[Interaction, Tensor | None]:
        """Return all rows of an epoch in its order, and the negatives of each, if there are any."""
        rows = self._rows(epoch, 0, self.sample_size)
        places = torch.arange(self.sample_size, device=self.device)
        positives = self._dataset.inter_feat.take(rows)
        return positives, self._drawn(positives, places, epoch) if self._draws else None

    def make_batch(self, rows: Tensor, places: Tensor, epoch: int) -> Interaction:
        """Return the interactions of these rows, transformed, with their negatives."""
        if self.overridden_verbs:
            made: Interaction = super().make_batch(rows, places, epoch)
            return made
        batch = self._dataset[rows]
        if self._transform is not None:
            batch = self._transform(batch, fold_seed(self._seed, "transform", epoch), places)
        return self._with_negatives(batch, self._drawn(batch, places, epoch)) if self._draws else batch

    # What a subclass that is written for RecBole calls or overrides ------------------------------------------

    def collate_fn(self, index: Any) -> Interaction:
        """Return the interactions of these rows, transformed, with their negatives."""
        places, epoch = self._place_of(len(index))
        batch = self._dataset[torch.as_tensor(index, dtype=torch.int64)]
        if self._transform is not None:
            batch = self._transform(batch, fold_seed(self._seed, "transform", epoch), places)
        return self._neg_sampling(batch)

    def _neg_sampling(self, inter_feat: Interaction) -> Interaction:
        """Return a batch with its negatives."""
        if not self._draws:
            return inter_feat
        negatives = self._drawn(inter_feat, *self._place_of(len(inter_feat))).T.reshape(-1)
        if self._format is InputType.POINTWISE:
            return self._neg_sample_by_point_wise_sampling(inter_feat, negatives)
        return self._neg_sample_by_pair_wise_sampling(inter_feat, negatives)

    def _neg_sample_by_pair_wise_sampling(self, inter_feat: Interaction, neg_item_ids: Tensor) -> Interaction:
        return self._with_negatives(inter_feat, neg_item_ids.view(-1, len(inter_feat)).T)

    _neg_sample_by_point_wise_sampling = _neg_sample_by_pair_wise_sampling

    def _place_of(self, rows: int) -> tuple[Tensor, int]:
        """Return the places of the rows of the batch that is being made, and the epoch."""
        if self._at is not None and len(self._at[0]) == rows:
            return self._at[0].cpu(), self._at[1]
        return torch.arange(rows), self.epoch

    def _with_negatives(self, batch: Interaction, negatives: Tensor) -> Interaction:
        if self._format is InputType.POINTWISE:
            return self._point_wise(batch, negatives)
        if self._flat:
            batch, negatives = batch.repeat(negatives.shape[1]), negatives.T.reshape(-1)
        elif negatives.shape[1] == 1 and self._format is InputType.PAIRWISE:
            negatives = negatives.squeeze(1)
        item = self._item_field
        added = self._dataset.join(Interaction.of_columns({item: negatives}, len(batch)))
        added.add_prefix(self._prefix)
        batch.update(added)
        return batch

    @property
    def _item_field(self) -> str:
        return str(self._dataset.iid_field)

    def _drawn(self, batch: Interaction, places: Tensor, epoch: int) -> Tensor:
        if self._draws_hard and self.model is None:
            raise ConfigError("train_neg_sample_args.dynamic needs the model: call get_model(model) on the loader")
        drawn: Tensor = self._sampler.draw(
            batch,
            int(self._arguments["sample_num"]),
            seed=fold_seed(self._seed, "negatives", epoch),
            places=places,
            scorer=(lambda _, items: self._scores(batch, items)) if self._draws_hard else None,
            candidates=int(self._arguments["candidate_num"]),
        )
        return drawn

    def _scores(self, batch: Interaction, items: Tensor) -> Tensor:
        """Return the model's score of each of several items for each row."""
        pairs = batch.repeat_interleave(items.shape[1])
        pairs[self._item_field] = items.reshape(-1)
        scores: Tensor = self.model.predict(self._dataset.join(pairs))
        return scores.view_as(items)

    def _point_wise(self, batch: Interaction, negatives: Tensor) -> Interaction:
        positives = len(batch)
        rows = batch.repeat(1 + negatives.shape[1])
        rows[self._item_field] = torch.cat([batch[self._item_field], negatives.T.reshape(-1)])
        rows = self._dataset.join(rows)
        rows[self._label] = (torch.arange(len(rows), device=negatives.device) < positives).float()
        return rows


def _bytes_of_row(features: Interaction | None) -> int:
    if features is None:
        return 0
    return sum(column[:1].numel() * column.element_size() for column in features.interaction.values())


# The rows of an epoch with their negatives, for a recorded step to cut its batches out of


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
