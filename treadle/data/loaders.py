"""Loaders that a trainer makes, and what they are given where the user says nothing."""

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from treadle.data.batch import Batch
from treadle.data.collate import batch_reader
from treadle.data.fetch import Shuffle
from treadle.data.in_memory import InMemoryDataset
from treadle.errors import ConfigError, DataError, require_positive

# A part of what a loader gives, and rows without padding


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
        self.dl: Any = dl
        self.slice_size: int = require_positive("DataLoaderSlice: slice_size", slice_size)

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


logger = logging.getLogger(__name__)


def make_loader(dataset: Any, *, shuffle: bool, collate_fn: Any = None, **kwargs: Any) -> DataLoader[Any]:
    """Return a `DataLoader` over `dataset` whose shuffling follows the run's seed.

    Raises:
        DataError: The data set is empty.
    """
    if isinstance(dataset, IterableDataset):
        return DataLoader(dataset, collate_fn=collate_fn, **kwargs)
    if loader_length(dataset) == 0:
        raise DataError(f"the data set {type(dataset).__name__} is empty; give it at least one sample")
    if shuffle and not {"sampler", "batch_sampler"} & set(kwargs):
        kwargs["sampler"] = Shuffle(dataset)
    return DataLoader(dataset, collate_fn=collate_fn, **kwargs)


def loader_length(source: Any) -> int | None:
    """Return the length of a source; None if it has none."""
    try:
        return len(source)
    except TypeError:
        return None


def as_loader(data: Any, *, shuffle: bool, **kwargs: Any) -> Any:
    """Return `data` if it is a loader or an iterable of batches already, else a loader over the data set.

    Raises:
        DataError: It is no data.
    """
    if isinstance(data, DataLoader):
        return data
    if isinstance(data, Mapping):
        data = _from_columns(data)
    if not is_map_style(data) and not isinstance(data, Dataset):
        if hasattr(data, "__iter__"):
            return data
        raise DataError(f"a {type(data).__name__} is no data; pass a data set, a DataLoader or an iterable of batches")
    if "batch_sampler" in kwargs:
        kwargs = {key: value for key, value in kwargs.items() if key not in ("batch_size", "drop_last")}
    return make_loader(_checked_samples(data, kwargs.get("collate_fn")), shuffle=shuffle, **kwargs)


def require_loader(data: Any, name: str) -> Any:
    """Return `data` if it is a loader or an iterable of batches.

    Raises:
        DataError: It is a data set, or no data.
    """
    if isinstance(data, Dataset) or not hasattr(data, "__iter__"):
        raise DataError(f"{name} is a {type(data).__name__}, which gives no batches; make a DataLoader of the data set")
    return data


def is_map_style(data: Any) -> bool:
    """Whether samples can be asked for by their index."""
    return hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, Mapping)


def _from_columns(data: Mapping[Any, Any]) -> InMemoryDataset:
    kinds = sorted({type(value).__name__ for value in data.values() if not isinstance(value, (Tensor, np.ndarray))})
    if kinds or not data:
        raise DataError(
            f"a {type(data).__name__} is data if each value is a tensor or an array with a row for every sample; "
            f"this one has {', '.join(kinds) or 'none'}"
        )
    # Kept on the host: whoever wants it on the device says so with an InMemoryDataset of his own.
    return InMemoryDataset(data, device="cpu")


def _checked_samples(data: Any, collate_fn: Any) -> Any:
    """Refuse columns that were passed as if they were samples, where torch would only say that they do not stack."""
    if collate_fn is None and type(data) in (list, tuple) and len(data) > 1:
        tensors = all(isinstance(value, Tensor) and value.dim() for value in data)
        if tensors and len({value.shape for value in data}) > 1 and len({len(value) for value in data}) == 1:
            raise DataError(
                f"a {type(data).__name__} is a data set of samples, but these {len(data)} tensors of unequal shape "
                "look like its columns; pass a TensorDataset or an InMemoryDataset of them"
            )
    return data


def loader_arguments(data: Any, defaults: dict[str, Any], given: dict[str, Any] | None, name: str) -> dict[str, Any]:
    """Return the arguments for a loader: the defaults, over them what was given, and what follows from both.

    >>> loader_arguments([1, 2], {"num_workers": 0, "batch_size": 4}, {"prefetch_factor": 3}, "train_dataloader_kwargs")
    {'num_workers': 0, 'batch_size': 4}
    >>> loader_arguments([1, 2], {"num_workers": 0}, {"num_workers": 2}, "train_dataloader_kwargs")
    {'num_workers': 2, 'persistent_workers': True}

    Args:
        data: What the loader is for.
        defaults: What the trainer would take.
        given: What the user gave.
        name: What that argument is called.

    Raises:
        ConfigError: Something was given that has no effect: the data is a loader or ready batches already, or it cannot
            be shuffled, or arguments exclude each other.
    """
    if given and is_ready(data):
        raise ConfigError(
            f"{name} has {sorted(given)}, but the data is {_kind(data)} already, which they cannot change; set them "
            "where it is made, or pass its data set"
        )
    _refuse_idle_arguments(data, given or {}, name)
    arguments = {**defaults, **(given or {})}
    if arguments.get("num_workers", 0) > 0:
        # Workers of an iterable draw from one generator, epoch after epoch: kept, they could not be resumed exactly.
        arguments.setdefault("persistent_workers", not isinstance(data, IterableDataset))
        return arguments
    idle = [key for key in ("persistent_workers", "prefetch_factor") if arguments.get(key) not in (None, False)]
    if idle:
        # A line, and no error: the same program may have workers on a machine with a GPU.
        logger.info("%s: %s: no effect without workers; set num_workers", name, ", ".join(idle))
    # Torch refuses these where there are no workers.
    return {key: value for key, value in arguments.items() if key not in ("persistent_workers", "prefetch_factor")}


def _refuse_idle_arguments(data: Any, given: dict[str, Any], name: str) -> None:
    if given.get("shuffle") and isinstance(data, IterableDataset):
        raise ConfigError(
            f"{name}: shuffle=True cannot shuffle a {type(data).__name__}, an iterable with an order of its own; "
            "shuffle in the data set itself, such as through a buffer, or pass one with __getitem__ and __len__"
        )
    for key in ("sampler", "batch_sampler"):
        if given.get(key) is None:
            continue
        excluded = ("shuffle",) if key == "sampler" else ("shuffle", "sampler", "batch_size", "drop_last")
        idle = [f"{other}={given[other]!r}" for other in excluded if given.get(other) not in (None, False)]
        if idle:
            raise ConfigError(f"{name}: {', '.join(idle)} has no effect beside {key}=; leave one of them out")


class DefaultSize(int):
    """A batch size that nobody asked for."""


DEFAULT_SIZE = DefaultSize(8)


def resolve_batch_size(
    size: int,
    *sources: Any,
    used: bool = False,
    name: str = "per_device_batch_size",
    tell: Callable[[str], object] | None = None,
) -> int:
    """Return a batch size; one that was asked for and has no effect on any source is told of, or refused.

    >>> loader = DataLoader([1, 2], batch_size=2)
    >>> resolve_batch_size(DEFAULT_SIZE, loader), resolve_batch_size(2, loader)
    (8, 2)

    Args:
        size: The size.
        sources: The data; None is none.
        used: Whether somebody uses it whatever the data is: a verb of the user's that makes the loaders.
        name: What the argument is called.
        tell: Called with a line if it has no effect; None raises it.

    Raises:
        ConfigError: All sources come in batches already, which are of another size, and nobody is told.
    """
    ready = [source for source in sources if source is not None]
    if isinstance(size, DefaultSize):
        return int(size)
    if not used and all(map(is_ready, ready)) and any(getattr(source, "batch_size", None) != size for source in ready):
        found = ", ".join(
            _kind(source) + (f" with batch_size={source.batch_size}" if isinstance(source, DataLoader) else "")
            for source in ready
        )
        text = (
            f"{name}={size} has no effect: the data is {found} already; set the size of batches where it is made, or "
            "pass its data set"
        )
        if tell is None:
            raise ConfigError(text)
        tell(text)
    return size


def _kind(data: Any) -> str:
    return "a DataLoader" if isinstance(data, DataLoader) else "ready batches"


def is_ready(data: Any) -> bool:
    """Whether data comes in batches already, so that no loader is made for it."""
    return isinstance(data, DataLoader) or not (is_map_style(data) or isinstance(data, (Dataset, Mapping)))


def refuse_idle_collate(collate_fn: Any, *sources: Any) -> None:
    """Refuse a function that joins samples where no source has any to join.

    Raises:
        ConfigError: All sources come in batches already.
    """
    if collate_fn is None or not all(map(is_ready, sources)):
        return
    raise ConfigError(
        f"collate_fn={getattr(collate_fn, '__name__', collate_fn)} joins samples into batches, but the data is "
        f"{_kind(sources[0])} already; give it to the DataLoader, or pass the data set"
    )


def needs_no_workers(data: Any, collate_fn: Any) -> bool:
    """Whether the batches of a data set are made by one call for each tensor, where workers would only cost."""
    if collate_fn not in (None, default_collate):
        return False
    return isinstance(data, Mapping) or batch_reader(data) is not None
