"""Batches of rows, fetched and collated with one indexing call for each tensor instead of one for each sample."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset, default_collate, get_worker_info

from treadle.data.batch import Batch

INDEX_TYPES = (torch.int64, torch.int32)


# Samples that were fetched one by one


def collated(samples: Sequence[Any]) -> Batch:
    """Return what `default_collate` makes of samples, without its search where they are pairs or dicts of tensors.

    >>> collated([(torch.zeros(2), 1), (torch.ones(2), 0)])
    [tensor([[0., 0.],
            [1., 1.]]), tensor([1, 0])]
    """
    first = samples[0]
    kind = type(first)
    # In a worker torch collates into memory that is shared.
    if get_worker_info() is None:
        try:
            if kind is tuple or kind is list:
                return [_column(values) for values in zip(*samples, strict=True)]
            if kind is dict:
                return {key: _column([sample[key] for sample in samples]) for key in first}
        except (TypeError, ValueError, RuntimeError, KeyError, IndexError):
            # Samples that do not fit together: torch says in its own words why.
            pass
    return default_collate(samples)  # type: ignore[arg-type]


def _column(values: Sequence[Any]) -> Any:
    first = values[0]
    if type(first) is Tensor and first.layout is torch.strided and not first.is_nested:
        return torch.stack(values)  # type: ignore[arg-type]
    return torch.tensor(values) if type(first) is int else default_collate(values)  # type: ignore[arg-type]


# Rows of tensors and arrays


class Rows(Protocol):
    """Makes a batch of the samples at some indices: what `default_collate` would make of them one by one."""

    device: torch.device

    def __call__(self, index: Tensor) -> Batch:
        """Return the batch of the samples at `index`."""


class HasRows(Dataset[Any]):
    """A data set that says itself where its rows are."""

    def rows(self) -> Rows:
        """Return what makes batches of it."""
        raise NotImplementedError


class TensorRows:
    """Rows of one tensor."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.device = tensor.device

    def __call__(self, index: Tensor) -> Tensor:
        """Return the rows at `index`."""
        # tensor[index] does the same, and takes 5 to 14 times as long.
        return self.tensor.index_select(0, _beside(self.tensor, index))


class ColumnRows:
    """Rows of several tensors side by side: a list of columns, or a dict of them.

    Args:
        tensors: The columns.
        keys: Their names in a batch; None makes batches lists, as collating tuples does.
    """

    def __init__(self, tensors: Sequence[Tensor], keys: Sequence[Any] | None = None) -> None:
        self.tensors = tuple(tensors)
        self.keys = None if keys is None else tuple(keys)
        self.device = self.tensors[0].device

    def __call__(self, index: Tensor) -> list[Tensor] | dict[Any, Tensor]:
        """Return the rows at `index`."""
        index = _beside(self.tensors[0], index)
        rows = [tensor.index_select(0, index) for tensor in self.tensors]
        return rows if self.keys is None else dict(zip(self.keys, rows, strict=True))


def _beside(tensor: Tensor, index: Tensor) -> Tensor:
    return index if tensor.is_cpu else index.to(tensor.device, non_blocking=tensor.is_cuda)


class ArrayRows:
    """Rows of an array, also of one that is mapped from a file and cannot be written to."""

    def __init__(self, array: Any) -> None:
        self.array = np.asarray(array)
        self.device = torch.device("cpu")

    def __call__(self, index: Tensor) -> Tensor:
        """Return the rows at `index`."""
        return torch.from_numpy(self.array.take(index.numpy(), axis=0))


class PartRows:
    """Some rows of another data set, as in a `Subset`.

    Args:
        rows: All rows.
        places: Which of them, in order.
    """

    def __init__(self, rows: Rows, places: Tensor) -> None:
        self.all = rows
        self.places = places
        self.device = rows.device

    def __call__(self, index: Tensor) -> Batch:
        """Return the rows at `index` of the part."""
        return self.all(self.places.index_select(0, index))


class JoinedRows:
    """The rows of several data sets, one after the other, as in a `ConcatDataset`.

    Args:
        parts: The rows of each.
        ends: Where each ends.
    """

    def __init__(self, parts: Sequence[Rows], ends: Sequence[int]) -> None:
        self.parts = tuple(parts)
        self.starts = (0, *ends[:-1])
        self.ends = torch.tensor(ends)
        self.device = torch.device("cpu")

    def __call__(self, index: Tensor) -> Batch:
        """Return the rows at `index`, in its order."""
        part = torch.bucketize(index, self.ends, right=True)
        by_part = part.argsort(stable=True)
        counts = torch.bincount(part, minlength=len(self.parts)).tolist()
        wanted = index.index_select(0, by_part).split(counts)  # type: ignore[no-untyped-call]
        shares = zip(self.parts, self.starts, wanted, strict=True)
        pieces = [rows(places - start) for rows, start, places in shares if len(places)]
        return _joined(pieces, by_part.argsort())


def _joined(pieces: list[Any], order: Tensor) -> Batch:
    first = pieces[0]
    if isinstance(first, Tensor):
        return torch.cat(pieces).index_select(0, order)
    if isinstance(first, dict):
        return {key: _joined([piece[key] for piece in pieces], order) for key in first}
    return [_joined(list(columns), order) for columns in zip(*pieces, strict=True)]


def as_index(indices: Any) -> Tensor | None:
    """Return indices as a tensor that rows can be picked by; None if they are no whole numbers from 0.

    >>> as_index([2, 0]), as_index([-1]), as_index(["ant", "bee"])
    (tensor([2, 0]), None, None)
    """
    try:
        index = torch.as_tensor(indices)
    except (TypeError, ValueError, RuntimeError):
        return None
    if index.dim() != 1 or index.dtype not in INDEX_TYPES or (len(index) and int(index.min()) < 0):
        return None
    return index


def batch_reader(dataset: Any) -> Rows | None:
    """Return what makes batches of a data set of tensors or arrays, or of a part of one; None for any other."""
    # Exactly these types: what inherits from them may do anything in `__getitem__`.
    kind = type(dataset)
    if kind is Tensor:
        return TensorRows(dataset) if _has_plain_rows(dataset) else None
    if kind is TensorDataset:
        tensors = dataset.tensors
        plain = bool(tensors) and all(_has_plain_rows(tensor) for tensor in tensors)
        return ColumnRows(tensors) if plain and len({tensor.device for tensor in tensors}) == 1 else None
    if kind is np.ndarray or kind is np.memmap:
        return _array_rows(dataset)
    if kind is Subset:
        return _part_rows(dataset)
    if kind is ConcatDataset:
        return _joined_rows(dataset)
    return dataset.rows() if isinstance(dataset, HasRows) else None


def _has_plain_rows(tensor: Any) -> bool:
    return type(tensor) is Tensor and tensor.layout is torch.strided and tensor.dim() > 0


def _array_rows(array: Any) -> ArrayRows | None:
    if not array.ndim or not len(array):
        return None
    try:
        torch.from_numpy(np.array(array[:1]))
    except TypeError:
        # Words, objects, records: what torch has no type for is collated, or refused, sample by sample.
        return None
    return ArrayRows(array)


def _part_rows(subset: Subset[Any]) -> PartRows | None:
    rows, places = batch_reader(subset.dataset), as_index(subset.indices)
    return None if rows is None or places is None else PartRows(rows, places)


def _joined_rows(dataset: ConcatDataset[Any]) -> JoinedRows | None:
    parts = [batch_reader(part) for part in dataset.datasets]
    known = [part for part in parts if part is not None and part.device.type == "cpu"]
    alike = len({_make(part) for part in known}) == 1
    return JoinedRows(known, dataset.cumulative_sizes) if alike and len(known) == len(parts) else None


def _make(rows: Any) -> Any:
    """Return what kind of batch comes of some rows, for comparison."""
    if isinstance(rows, PartRows):
        return _make(rows.all)
    if isinstance(rows, JoinedRows):
        return _make(rows.parts[0])
    return (len(rows.tensors), rows.keys) if isinstance(rows, ColumnRows) else None


class WholeBatches(Dataset[Any]):
    """A data set of rows, from which a loader gets collated batches; workers too.

    Args:
        dataset: The data set.
        rows: Its rows.
    """

    def __init__(self, dataset: Any, rows: Rows) -> None:
        self.dataset = dataset
        self.rows = rows

    def __getitems__(self, indices: Any) -> Batch:
        index = as_index(indices)
        if index is None:
            return default_collate([self.dataset[one] for one in indices])
        return self.rows(index)

    def __getitem__(self, index: Any) -> Any:
        return self.dataset[index]

    def __len__(self) -> int:
        return len(self.dataset)
