"""What every loader does: number its batches, and begin at any of them."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from treadle.data.seeds import fold_seed
from treadle.errors import ConfigError, DataError
from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataloader.custom_sampling import as_table, global_seed, reseed
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.data.transforms import Transform, construct_transform
from treadle.recsys.enums import FeatureSource, FeatureType, InputType, ModelType

VERBS = (
    "collate_fn",
    "_neg_sampling",
    "_neg_sample_by_pair_wise_sampling",
    "_neg_sample_by_point_wise_sampling",
)
"""The methods that make a batch in RecBole's loaders."""


class AbstractDataLoader(ABC):
    """Batches of a data set, in an order that the seed and the epoch decide.

    What a batch holds depends on the seed, the epoch and its number alone: `batch_at(epoch, index)` gives any batch,
    without those before it. Iterating gives the batches of an epoch, and of the next epoch the next time; an epoch that
    was left before its end is begun again. `state_dict` says where an iteration is, and the one after `load_state_dict`
    goes on from there.

    Args:
        config: The settings.
        dataset: The data.
        sampler: Where negatives come from, if there are any.
        shuffle: Whether each epoch has an order of its own.

    A subclass says with `make_batch` what a batch is; or, as in RecBole, with `collate_fn(index)`, having set
    `sample_size` before it calls this constructor, if an epoch is not the rows of the data.

    Attributes:
        sample_size: How many rows an epoch has.
        epoch: The epoch that iterating gives next.

    Raises:
        DataError: There are no rows.
    """

    transforms = False
    """Whether its batches may go through a transform."""
    collates = True
    """Whether a `collate_fn` of a subclass is called for its batches."""
    _transform: Transform | None = None
    _step = 1
    _settling = _step_chosen = False
    _at: tuple[Tensor, int] | None = None

    def __init__(self, config: Config, dataset: Dataset, sampler: Any = None, shuffle: bool = False) -> None:
        self.config = config
        self._dataset = dataset
        self._sampler = sampler
        self.shuffle = shuffle
        self.device = torch.device("cpu")
        self.model: Any = None
        self.epoch = 0
        self._first_batch = self._next_batch = 0
        self._seed = int(config["seed"])
        self._rank, self._size = 0, 1
        self._order: tuple[int, Tensor] | None = None
        self._batch_size = 1
        self.is_sequential = config["MODEL_TYPE"] is ModelType.SEQUENTIAL
        self.transform = construct_transform(config)
        self.sample_size = self._count_rows()
        if self.sample_size < 1:
            raise DataError(f"a {type(self).__name__} of {dataset.dataset_name!r} has no rows")
        self._check_verbs()
        self._settle_batch_size()

    def _check_verbs(self) -> None:
        """Make sure that a batch can be made, and that no method of a subclass waits for a call that never comes."""
        name = type(self).__name__
        if type(self).make_batch is AbstractDataLoader.make_batch and type(self).collate_fn is _BASE_COLLATE:
            raise ConfigError(f"{name} says neither with collate_fn(index) nor with make_batch what a batch is")
        if self.overridden_verbs and not self.collates:
            raise ConfigError(
                f"{name}.{self.overridden_verbs[0]} is never called: an evaluation asks its loader for "
                "interaction(queries); override that, or evaluate of the trainer"
            )

    @cached_property
    def overridden_verbs(self) -> list[str]:
        """Which methods that make a batch in RecBole's loaders a subclass of somebody else's overrides."""
        found = [(name, getattr(type(self), name, None)) for name in VERBS]
        return [name for name, verb in found if verb is not None and not verb.__module__.startswith(__package__)]

    def _count_rows(self) -> int:
        """Return how many rows an epoch has: `sample_size`, if a subclass has set it, or those of the data."""
        return int(self.__dict__.get("sample_size", len(self._dataset)))

    @abstractmethod
    def _init_batch_size_and_step(self) -> None:
        """Set `step` from the settings."""

    def _settle_batch_size(self) -> None:
        self._settling, self._step_chosen = True, False
        self._init_batch_size_and_step()
        self._settling = False

    @property
    def step(self) -> int:
        """How many rows of the data a batch is made of."""
        return self._step

    @step.setter
    def step(self, step: int) -> None:
        """Choose how many."""
        self._step, self._step_chosen = step, True

    def make_batch(self, rows: Tensor, places: Tensor, epoch: int) -> Any:
        """Return the batch of these rows: what `collate_fn` makes of them.

        Whatever it draws from the generators of Python, NumPy or torch, or from its sampler, depends on the seed, the
        epoch and the place of the batch, and moves nobody else's.

        Args:
            rows: Which rows.
            places: Where each of them stands in the order of the epoch.
            epoch: The epoch.
        """
        self._at = places, epoch
        first = int(places[0]) if len(places) else 0
        with global_seed(fold_seed(self._seed, "collate", epoch, first)):
            reseed(self._sampler)
            batch = self.collate_fn(rows.cpu().numpy())
        return batch.to(self.device) if isinstance(batch, Interaction) else batch

    def collate_fn(self, index: Any) -> Any:
        """Return the batch of these rows, for subclasses that are written for RecBole.

        Args:
            index: The rows, as an array.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define collate_fn")

    @property
    def dataset(self) -> Dataset:
        """The data."""
        return self._dataset

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The columns of the data; a run that is resumed looks at some of their rows."""
        return self._dataset.tensors

    @property
    def batch_size(self) -> int:
        """The most rows of a batch, negatives included."""
        return self._batch_size

    def set_batch_size(self, batch_size: int) -> None:
        """Take another number of rows for a batch, negatives included.

        Raises:
            ConfigError: It is below 1.
        """
        if batch_size < 1:
            raise ConfigError(f"batch_size={batch_size} must be at least 1")
        self._batch_size = batch_size
        # A subclass that has just said how many rows a batch is made of, means something else by its size.
        if not (self._settling and self._step_chosen):
            self._step = batch_size

    def update_config(self, config: Config) -> None:
        """Take the batch size of other settings."""
        self.config = config
        self._settle_batch_size()

    def get_model(self, model: Any) -> None:
        """Take the model that scores candidates, where negatives are chosen by it."""
        self.model = model

    def transformed(self, transform: Transform) -> Self:
        """Return a loader of the same rows, with another transform of their sequences.

        Raises:
            ConfigError: The loader transforms nothing.
        """
        if not self.transforms:
            raise ConfigError(f"a {type(self).__name__} has no sequences to transform")
        made = copy.copy(self)
        made._transform = transform
        return made

    def to(self, device: torch.device | str) -> Self:
        """Keep the data on `device`, and make the batches there; returns the loader itself."""
        self.device = torch.device(device)
        if not self.overridden_verbs:
            # A collate_fn of somebody else's reads the data as arrays, and what it returns is brought to the device.
            self._dataset = self._dataset.to(self.device)
        self._order = None
        return self

    def shard(self, rank: int, size: int) -> Self:
        """Give, when iterated over, the share of one of several processes; returns the loader itself.

        The shares of a batch put together are the batch that one process would see, negatives included.
        """
        if not 0 <= rank < size:
            raise ConfigError(f"rank={rank} is none of {size} processes; ranks begin at 0")
        self._rank, self._size = rank, size
        return self

    def __len__(self) -> int:
        return -(-self.sample_size // self.step)

    def batch_at(self, epoch: int, index: int, *, rank: int = 0, size: int = 1) -> Any:
        """Return the batch numbered `index` of an epoch, or the share of one of several processes.

        A last, short batch may leave a process without rows; its batch is then empty.

        Raises:
            DataError: There is no such batch.
        """
        first, last = self._share(index, rank, size)
        places = torch.arange(first, last, device=self.device)
        return self.make_batch(self._rows(epoch, first, last), places, epoch)

    def _share(self, index: int, rank: int, size: int) -> tuple[int, int]:
        """Return from which place of an epoch to which a process's share of a batch goes."""
        step = self.step
        start, stop = index * step, min((index + 1) * step, self.sample_size)
        if not 0 <= start < self.sample_size:
            raise DataError(f"there is no batch {index}: an epoch has {len(self)}, and the first is 0")
        each, more = divmod(stop - start, size)
        first = start + rank * each + min(rank, more)
        return first, first + each + (rank < more)

    def _rows(self, epoch: int, first: int, last: int) -> Tensor:
        if not self.shuffle:
            return torch.arange(first, last, device=self.device)
        return self.epoch_order(epoch)[first:last]

    def epoch_order(self, epoch: int) -> Tensor:
        """Return the order of the rows in an epoch, on the device; asking ahead of time leaves nothing to do then."""
        if self._order is None or self._order[0] != epoch:
            # On the host, where every machine draws the same; then once to the device.
            generator = torch.Generator().manual_seed(fold_seed(self._seed, "order", epoch))
            order = self._draw_order(generator)
            if self.device.type == "cuda":
                order = order.pin_memory().to(self.device, non_blocking=True)
            self._order = (epoch, order.to(self.device))
        return self._order[1]

    def _draw_order(self, generator: torch.Generator) -> Tensor:
        # Of 32 bit where they suffice: the same numbers, in a third of the time.
        width = torch.int32 if self.sample_size < 1 << 31 else torch.int64
        return torch.randperm(self.sample_size, generator=generator, dtype=width).long()

    def __iter__(self) -> Iterator[Any]:
        epoch, first = self.epoch, self._first_batch
        self._first_batch = 0
        for index in range(first, len(self)):
            # Before the batch is handed out: whoever has it has drawn it.
            self._next_batch = index + 1
            yield self.batch_at(epoch, index, rank=self._rank, size=self._size)
        if self.epoch == epoch:
            self.set_epoch(epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch."""
        self.epoch, self._first_batch, self._next_batch = epoch, 0, 0

    def state_dict(self) -> dict[str, int]:
        """Return where iterating is: the epoch, and the batch that comes next."""
        return {"epoch": self.epoch, "batch": self._next_batch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Have the next iteration go on from a place that `state_dict` returned."""
        self.epoch = int(state["epoch"])
        self._first_batch = self._next_batch = int(state["batch"])


_BASE_COLLATE = AbstractDataLoader.collate_fn


# A loader that draws negatives by RecBole's names, for loaders that are made of its steps


class NegSampleDataLoader(AbstractDataLoader):
    """Batches with negatives, as a subclass makes them with `_set_neg_sample_args` and `_neg_sampling`.

    Args:
        config: The settings.
        dataset: The data.
        sampler: Draws items with `sample_by_user_ids`.
        shuffle: Whether each epoch has an order of its own.

    Attributes:
        times: How many rows a positive becomes.
        neg_sample_args: How negatives are drawn, as `train_neg_sample_args` has it.
        dl_format: Whether negatives are further rows, or further columns.
    """

    times = 1

    def __init__(self, config: Config, dataset: Dataset, sampler: Any = None, shuffle: bool = True) -> None:
        super().__init__(config, dataset, sampler, shuffle)

    def _set_neg_sample_args(
        self, config: Config, dataset: Dataset, dl_format: InputType, neg_sample_args: dict[str, Any]
    ) -> None:
        """Say how negatives are drawn; called before the constructor of this class."""
        self.uid_field, self.iid_field = str(dataset.uid_field), str(dataset.iid_field)
        self.dl_format, self.neg_sample_args, self.times = dl_format, neg_sample_args, 1
        self._samples = neg_sample_args["distribution"] != "none" and neg_sample_args["sample_num"] != "none"
        if not self._samples:
            return
        self.neg_sample_num = int(neg_sample_args["sample_num"])
        if dl_format is InputType.POINTWISE:
            self.times = 1 + self.neg_sample_num
            self.label_field = str(config["LABEL_FIELD"])
            dataset.set_field_property(self.label_field, FeatureType.FLOAT, FeatureSource.INTERACTION, 1)
        elif dl_format is InputType.PAIRWISE:
            self.times = self.neg_sample_num
            self.neg_prefix = str(config["NEG_PREFIX"])
            self.neg_item_id = self.neg_prefix + self.iid_field
            for name in dataset.get_item_feature().columns:
                dataset.copy_field_property(self.neg_prefix + name, name)
        else:
            raise ConfigError(f"negatives are drawn for batches of rows or of pairs, not for {dl_format}")

    def _neg_sampling(self, inter_feat: Interaction) -> Interaction:
        """Return a batch with its negatives; of several candidates the one that the model scores highest."""
        if not self._samples:
            return inter_feat
        users, items = (inter_feat[field].cpu().numpy() for field in (self.uid_field, self.iid_field))
        dynamic = bool(self.neg_sample_args.get("dynamic"))
        candidates = int(self.neg_sample_args["candidate_num"]) if dynamic else 1
        number = self.neg_sample_num * candidates
        drawn = as_table(self._sampler.sample_by_user_ids(users, items, number), len(users), number, self._sampler)
        if dynamic:
            drawn = self._hardest(inter_feat, drawn, candidates)
        negatives = drawn.T.reshape(-1)
        if self.dl_format is InputType.POINTWISE:
            return self._neg_sample_by_point_wise_sampling(inter_feat, negatives)
        return self._neg_sample_by_pair_wise_sampling(inter_feat, negatives)

    def _hardest(self, batch: Interaction, drawn: Tensor, candidates: int) -> Tensor:
        if self.model is None:
            raise ConfigError("train_neg_sample_args.dynamic needs the model: call get_model(model) on the loader")
        pairs = batch.repeat_interleave(drawn.shape[1])
        pairs[self.iid_field] = drawn.reshape(-1)
        scores = self.model.predict(self._dataset.join(pairs).to(self.device)).cpu()
        each = (len(batch), self.neg_sample_num, candidates)
        return drawn.view(each).gather(2, scores.view(each).argmax(dim=2, keepdim=True)).squeeze(2)

    def _neg_sample_by_pair_wise_sampling(self, inter_feat: Interaction, neg_item_ids: Tensor) -> Interaction:
        """Return the rows repeated for each negative, which stand in columns of their own."""
        rows = inter_feat.repeat(self.times)
        added = self._dataset.join(Interaction({self.iid_field: neg_item_ids}))
        added.add_prefix(self.neg_prefix)
        rows.update(added)
        return rows

    def _neg_sample_by_point_wise_sampling(self, inter_feat: Interaction, neg_item_ids: Tensor) -> Interaction:
        """Return the rows, and below them the rows of negatives, told apart by their label."""
        positives = len(inter_feat)
        rows = inter_feat.repeat(self.times)
        rows[self.iid_field] = torch.cat([inter_feat[self.iid_field], neg_item_ids])
        rows = self._dataset.join(rows)
        rows[self.label_field] = (torch.arange(len(rows)) < positives).float()
        return rows
