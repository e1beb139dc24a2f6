"""Data that lives on the device, and is shuffled and gathered there."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset

from treadle.data.batch import Batch
from treadle.data.collate import ColumnRows, HasRows, Rows
from treadle.errors import DataError

Transform = Callable[[Batch, torch.Generator], Batch]


class InMemoryDataset(HasRows):
    """Tensors that live on the device; a trainer shuffles and gathers their rows there, with nothing to copy.

    A batch is a list of tensors, or a dict if the columns came in one, in the order and of the values that a
    `TensorDataset` of the same tensors gives.

    >>> data = InMemoryDataset(torch.arange(6.0), torch.tensor([0, 1, 0, 1, 0, 1]))
    >>> len(data), data[1]
    (6, (tensor(1.), tensor(1)))

    Args:
        columns: Tensors or arrays with a row for each sample, or one dict of them.
        device: Where they live. None is the device of the trainer that first uses them, to which they are moved;
            "cpu" keeps them on the host even if the trainer is not there: batches are then gathered there and
            brought over.
        transform: Called as `transform(batch, generator)` for every batch, where the tensors live. The generator
            is of that device, and seeded from the run's seed, the epoch and the number of the batch.

    Raises:
        DataError: A column is no tensor and no array, or has another number of rows.
    """

    def __init__(
        self,
        *columns: Any,
        device: torch.device | str | None = None,
        transform: Transform | None = None,
    ) -> None:
        named = len(columns) == 1 and isinstance(columns[0], Mapping)
        self.keys: tuple[Any, ...] | None = tuple(columns[0]) if named else None
        given = list(columns[0].values()) if named else list(columns)
        names = list(self.keys) if self.keys is not None else list(range(len(given)))
        self.tensors = tuple(_column(value, name) for value, name in zip(given, names, strict=True))
        _check_lengths(dict(zip(names, self.tensors, strict=True)))
        if transform is not None and not callable(transform):
            raise DataError(f"InMemoryDataset: transform={transform!r} cannot be called; pass f(batch, generator)")
        self.transform = transform
        self._asked = None if device is None else torch.device(device)
        if self._asked is not None:
            self._move(self._asked)

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, index: Any) -> Any:
        row = tuple(tensor[index] for tensor in self.tensors)
        return row if self.keys is None else dict(zip(self.keys, row, strict=True))

    @property
    def device(self) -> torch.device:
        """Where the tensors are now."""
        return self.tensors[0].device

    def rows(self) -> Rows:
        """Return what makes batches of it, without the transform."""
        return ColumnRows(self.tensors, self.keys)

    def bring_to(self, device: torch.device) -> None:
        """Move the tensors to the device of a trainer, unless they were given a place.

        Raises:
            DataError: They were given another device than that, and not the host.
        """
        if self._asked is None:
            self._move(device)
        elif self._asked.type not in ("cpu", device.type) or self._asked.index not in (None, device.index):
            raise DataError(
                f"InMemoryDataset lives on {self._asked} and the trainer is on {device}; leave device= out, and the "
                "data goes where the trainer is"
            )
        elif self._asked.type != "cpu":
            self._move(device)

    def _move(self, device: torch.device) -> None:
        self.tensors = tuple(tensor.to(device) for tensor in self.tensors)


def _column(value: Any, name: Any) -> Tensor:
    column = torch.from_numpy(np.array(value)) if isinstance(value, np.ndarray) else value
    if not isinstance(column, Tensor) or not column.dim():
        kind = f"a {type(value).__name__}" if not isinstance(column, Tensor) else "a single number"
        raise DataError(
            f"InMemoryDataset: column {name!r} is {kind}; give a tensor or an array with a row for each sample"
        )
    return column.detach()


def _check_lengths(columns: dict[Any, Tensor]) -> None:
    if not columns:
        raise DataError("InMemoryDataset has no columns; give it tensors, arrays or a dict of them")
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name!r} has {length}" for name, length in lengths.items())
        raise DataError(f"InMemoryDataset: the columns have unequal numbers of rows: {listed}; cut them to one length")


def in_memory_base(dataset: Any) -> InMemoryDataset | None:
    """Return the data in memory that a data set is, or is a part of.

    Raises:
        DataError: It is joined with others, where nobody could gather or transform it.
    """
    if type(dataset) is Subset:
        return in_memory_base(dataset.dataset)
    if type(dataset) is ConcatDataset and any(map(in_memory_base, dataset.datasets)):
        raise DataError("an InMemoryDataset cannot be a part of a ConcatDataset; join the tensors with torch.cat first")
    return dataset if isinstance(dataset, InMemoryDataset) else None
