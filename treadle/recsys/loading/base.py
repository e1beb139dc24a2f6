"""What every loader does: number its batches, and begin at any of them."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Self

import torch
from torch import Tensor

from treadle.data.seeds import fold_seed
from treadle.errors import ConfigError, DataError
from treadle.recsys.config import Config
from treadle.recsys.dataset import Dataset
from treadle.recsys.transforms import Transform


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

    Attributes:
        sample_size: How many rows an epoch has.
        step: How many of them a batch is made of.
        epoch: The epoch that iterating gives next.

    Raises:
        DataError: There are no rows.
    """

    transforms = False
    """Whether its batches may go through a transform."""
    _transform: Transform | None = None

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
        self.step = 1
        self._batch_size = 1
        self.sample_size = self._count_rows()
        if self.sample_size < 1:
            raise DataError(f"a {type(self).__name__} of {dataset.dataset_name!r} has no rows")
        self._init_batch_size_and_step()

    @abstractmethod
    def _count_rows(self) -> int:
        """Return how many rows an epoch has."""

    @abstractmethod
    def _init_batch_size_and_step(self) -> None:
        """Set `step` from the settings."""

    @abstractmethod
    def make_batch(self, rows: Tensor, places: Tensor, epoch: int) -> Any:
        """Return the batch of these rows.

        Args:
            rows: Which rows.
            places: Where each of them stands in the order of the epoch.
            epoch: The epoch.
        """

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
        self.step = self._batch_size = batch_size

    def update_config(self, config: Config) -> None:
        """Take the batch size of other settings."""
        self.config = config
        self._init_batch_size_and_step()

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
        if not 0 <= index < len(self):
            raise DataError(f"there is no batch {index}: an epoch has {len(self)}, and the first is 0")
        start, stop = index * self.step, min((index + 1) * self.step, self.sample_size)
        each, more = divmod(stop - start, size)
        first = start + rank * each + min(rank, more)
        return first, first + each + (rank < more)

    def _rows(self, epoch: int, first: int, last: int) -> Tensor:
        if not self.shuffle:
            return torch.arange(first, last, device=self.device)
        return self.order_of(epoch)[first:last]

    def order_of(self, epoch: int) -> Tensor:
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
