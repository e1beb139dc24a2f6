"""A batch of interactions: columns of equal length, by name."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from treadle.errors import DataError, did_you_mean


class Interaction:
    """Rows of several columns, as tensors on one device.

    A column is read by its name; anything else that tensors can be indexed with takes rows.

    >>> batch = Interaction({"user_id": torch.tensor([1, 1, 2]), "item_id": [3, 4, 3]})
    >>> batch["item_id"].tolist(), len(batch), len(batch[torch.tensor([0, 2])])
    ([3, 4, 3], 3, 2)

    Args:
        interaction: The columns: a dict or a pandas data frame. Lists and arrays become tensors, of 32 bit where they
            hold floats; tensors are taken as they are.

    Attributes:
        interaction: The columns by name.
        length: The number of rows.

    Raises:
        DataError: A column is no tensor, array or list, or the columns differ in length.
    """

    def __init__(self, interaction: Any) -> None:
        self.interaction: dict[str, Tensor] = _as_columns(interaction)
        self.length = _common_length(self.interaction)

    @classmethod
    def of_columns(cls, columns: dict[str, Tensor], length: int) -> "Interaction":
        """Return an interaction of columns that are known to be tensors of `length` rows."""
        made = cls.__new__(cls)
        made.interaction, made.length = columns, length
        return made

    def __iter__(self) -> Iterator[str]:
        return iter(self.interaction)

    def __contains__(self, column: object) -> bool:
        return column in self.interaction

    def __len__(self) -> int:
        return self.length

    def __getattr__(self, name: str) -> Any:
        columns = self.__dict__.get("interaction", {})
        if name in columns:
            return columns[name]
        raise AttributeError(f"an Interaction has no attribute {name!r}, and no such column")

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, str):
            return self._column(index)
        if isinstance(index, (int, np.integer)):
            index = torch.tensor([int(index)])
        elif isinstance(index, np.ndarray):
            index = tensor_of_array(index)
        elif isinstance(index, (list, tuple, range)):
            index = torch.tensor(list(index), dtype=_index_type(index))
        taken = {name: column[index] for name, column in self.interaction.items()}
        return Interaction.of_columns(taken, _common_length(taken))

    def take(self, places: Tensor) -> "Interaction":
        """Return the rows at `places`, integers from 0 on the same device; on a CPU many times as fast as brackets."""
        taken = {name: column.index_select(0, places) for name, column in self.interaction.items()}
        return Interaction.of_columns(taken, len(places))

    def __setitem__(self, column: str, value: Tensor) -> None:
        if not isinstance(column, str):
            raise KeyError(f"columns are set by their name, not by {type(column).__name__}")
        self.interaction[column] = value

    def __delitem__(self, column: str) -> None:
        self.drop(column)

    def _column(self, name: str) -> Tensor:
        try:
            return self.interaction[name]
        except KeyError:
            near = did_you_mean(name, self.interaction) or f"; it has {self.columns}"
            raise KeyError(f"there is no column {name!r}{near}") from None

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self.interaction)

    def to(self, device: torch.device | str, selected_field: str | Iterable[str] | None = None) -> "Interaction":
        """Return the interaction on `device`; only some columns, if `selected_field` names them."""
        chosen = self.interaction if selected_field is None else _names(selected_field)
        # A copy to the host that nobody waits for could be read before it is there.
        early = torch.device(device).type != "cpu"
        moved = {
            name: column.to(device, non_blocking=early) if name in chosen else column
            for name, column in self.interaction.items()
        }
        return Interaction.of_columns(moved, self.length)

    def cpu(self) -> "Interaction":
        """Return the interaction on the host."""
        return self._each(lambda column: column.cpu())

    def pin_memory(self) -> "Interaction":
        """Return the interaction in memory that copies to a GPU without waiting."""
        return self._each(lambda column: column.pin_memory())

    def numpy(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return the columns as NumPy arrays."""
        return {name: column.numpy() for name, column in self.interaction.items()}

    def take_rows(self, first: int, last: int) -> "Interaction":
        """Return the rows from `first` up to, and without, `last`; they are views."""
        columns = {name: column[first:last] for name, column in self.interaction.items()}
        return Interaction.of_columns(columns, last - first)

    def repeat(self, sizes: int) -> "Interaction":
        """Return all rows `sizes` times, one round after the other."""
        return self._each(lambda column: column.repeat(sizes, *[1] * (column.dim() - 1)))

    def repeat_interleave(self, repeats: int | Tensor, dim: int = 0) -> "Interaction":
        """Return each row `repeats` times in a row."""
        return self._each(lambda column: column.repeat_interleave(repeats, dim=dim))

    def _each(self, change: Any) -> "Interaction":
        changed = {name: change(column) for name, column in self.interaction.items()}
        return Interaction.of_columns(changed, _common_length(changed))

    def update(self, new_inter: "Interaction | Mapping[str, Tensor]") -> None:
        """Add columns, or replace those of the same name."""
        added = new_inter.interaction if isinstance(new_inter, Interaction) else new_inter
        self.interaction.update(added)
        self.length = _common_length(self.interaction)

    def drop(self, column: str) -> None:
        """Remove a column."""
        self._column(column)
        del self.interaction[column]

    def add_prefix(self, prefix: str) -> None:
        """Put `prefix` before the name of every column."""
        self.interaction = {prefix + name: column for name, column in self.interaction.items()}

    def shuffle(self, generator: torch.Generator | None = None) -> None:
        """Bring the rows into random order, in place."""
        self._reindex(torch.randperm(self.length, generator=generator))

    def sort(self, by: str | Sequence[str], ascending: bool | Sequence[bool] = True) -> None:
        """Sort the rows in place, by one column or by several; rows that are equal keep their order.

        Raises:
            DataError: `by` and `ascending` differ in length.
        """
        keys = [by] if isinstance(by, str) else list(by)
        rising = [ascending] * len(keys) if isinstance(ascending, bool) else list(ascending)
        if len(keys) != len(rising):
            raise DataError(f"sorting by {keys} needs as many values in ascending, not {rising}")
        order = torch.arange(self.length)
        for key, up in reversed(list(zip(keys, rising, strict=True))):
            column = self._column(key)
            values = (column if column.dim() == 1 else column.flatten(1)[:, 0])[order.to(column.device)]
            order = order[torch.sort(values, stable=True, descending=not up).indices.cpu()]
        self._reindex(order)

    def _reindex(self, order: Tensor) -> None:
        self.interaction = self[order].interaction

    def __repr__(self) -> str:
        lines = [f"{self.length} rows"]
        for name, column in self.interaction.items():
            lines.append(f"    {name}, {tuple(column.shape)}, {column.device}, {column.dtype}")
        return "\n".join(lines)


def cat_interactions(interactions: Sequence[Interaction]) -> Interaction:
    """Return the rows of several interactions with the same columns, one after the other.

    >>> two = cat_interactions([Interaction({"a": [1]}), Interaction({"a": [2, 3]})])
    >>> two["a"].tolist()
    [1, 2, 3]

    Raises:
        DataError: There are none, or their columns differ.
    """
    if not interactions:
        raise DataError("there are no interactions to put together")
    first = interactions[0]
    for other in interactions[1:]:
        if set(other.columns) != set(first.columns):
            different = sorted(set(other.columns) ^ set(first.columns))
            raise DataError(f"interactions with different columns cannot be put together; they differ in {different}")
    joined = {name: torch.cat([part[name] for part in interactions]) for name in first.columns}
    return Interaction.of_columns(joined, sum(map(len, interactions)))


def _as_columns(given: Any) -> dict[str, Tensor]:
    if isinstance(given, Interaction):
        return dict(given.interaction)
    if isinstance(given, Mapping):
        return {str(name): _as_tensor(str(name), values) for name, values in given.items()}
    if hasattr(given, "columns") and hasattr(given, "to_numpy"):
        return {str(name): _as_tensor(str(name), given[name].to_numpy()) for name in given.columns}
    raise DataError(f"an Interaction is made of a dict or a data frame, not of {type(given).__name__}")


def _as_tensor(name: str, values: Any) -> Tensor:
    if isinstance(values, Tensor):
        return values
    if not isinstance(values, (list, tuple, np.ndarray)):
        raise DataError(f"column {name!r} is a {type(values).__name__}; give a tensor, an array or a list")
    ragged = isinstance(values, np.ndarray) and values.dtype == object
    if len(values) and (ragged or isinstance(values[0], (list, tuple, np.ndarray, Tensor))):
        made = pad_sequence([torch.as_tensor(row) for row in values], batch_first=True)
    else:
        try:
            made = tensor_of_array(values) if isinstance(values, np.ndarray) else torch.as_tensor(values)
        except (TypeError, ValueError) as error:
            raise DataError(f"column {name!r} holds values that are no numbers: {error}") from error
    return made.float() if made.dtype == torch.float64 else made


def tensor_of_array(array: np.ndarray[Any, Any]) -> Tensor:
    """Return an array as a tensor; with the same memory, if that may be written to."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _common_length(columns: Mapping[str, Tensor]) -> int:
    lengths = {name: column.shape[0] if column.dim() else 1 for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(f"the columns of an interaction differ in length: {lengths}")
    return next(iter(lengths.values()), 0)


def _index_type(index: Sequence[Any]) -> torch.dtype:
    return torch.bool if len(index) and isinstance(index[0], bool) else torch.int64


def _names(selected: str | Iterable[str]) -> set[str]:
    return {selected} if isinstance(selected, str) else set(selected)
