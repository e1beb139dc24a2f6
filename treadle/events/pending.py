"""Numbers that recorded steps leave on the device, and that are read together when somebody asks."""

from typing import Any

import torch
from torch import Tensor

ROWS = 4096
"""How many steps a table holds before a copy of it is set aside, on the device."""


class PendingNumber:
    """One number in a table on the device."""

    __slots__ = ("_block", "_column", "_row")

    def __init__(self, block: "_Block", row: int, column: int) -> None:
        self._block, self._row, self._column = block, row, column

    def read(self) -> float:
        """Bring it to the host, with everything else of its table that is not there yet."""
        return self._block.row(self._row)[self._column]


class PendingRows:
    """A table on the device in which every replay of a recorded step fills the next row.

    Args:
        columns: How many numbers a step leaves.
        dtype: Their type.
        device: Where they are.
        rows: How many steps there is room for.
    """

    def __init__(self, columns: int, *, dtype: torch.dtype, device: torch.device, rows: int = ROWS) -> None:
        self._table = torch.zeros(rows, columns, dtype=dtype, device=device)
        self._cursor = torch.zeros(1, dtype=torch.int64, device=device)
        self._places = torch.arange(rows, device=device).unsqueeze(1)
        self._size, self._columns = rows, range(columns)
        self._claimed = 0
        self._block = _Block(self)

    def write(self, numbers: list[Tensor]) -> None:
        """Fill the next row; this is a part of the recorded step."""
        if len(numbers) == 1:
            row = numbers[0].reshape(1, 1).to(self._table.dtype)
        else:
            row = torch.stack([number.reshape(()).to(self._table.dtype) for number in numbers]).unsqueeze(0)
        if torch.are_deterministic_algorithms_enabled():
            # Torch's deterministic way of copying to an index sorts first.
            self._table.copy_(torch.where(self._places == self._cursor, row, self._table))
        else:
            self._table.index_copy_(0, self._cursor, row)
        self._cursor.add_(1)

    def begin(self) -> None:
        """Begin with the first row again, whatever was written."""
        self._cursor.zero_()

    def claim(self) -> list[PendingNumber]:
        """Return the numbers of the step that was replayed last; nothing is read."""
        block, row = self._block, self._claimed
        self._claimed += 1
        if self._claimed == self._size:
            block.kept = self._table.clone()
            self._block, self._claimed = _Block(self), 0
            self.begin()
        return [PendingNumber(block, row, column) for column in self._columns]

    def filled(self) -> Tensor:
        """Return the rows that were claimed since the table began anew."""
        return self._table[: self._claimed]


class _Block:
    """The rows of a table from its first to its last, which are read with one copy."""

    def __init__(self, rows: PendingRows) -> None:
        self._rows = rows
        self._read: list[Any] = []
        self.kept: Tensor | None = None

    def row(self, number: int) -> list[float]:
        if number >= len(self._read):
            table = self._rows.filled() if self.kept is None else self.kept
            # Only what is new: a list of all rows each time would cost more than the steps that fill them.
            self._read += table[len(self._read) :].tolist()
        row: list[float] = self._read[number]
        return row


# Bringing what is on a device to the host, with one copy


_PLAIN = frozenset({bool, int, float, str})
"""Kinds of values that are on the host already."""


def read_values(values: list[Any]) -> list[Any]:
    """Bring the tensors among `values` to the host, with one copy per device; a single number as a number.

    >>> read_values([torch.tensor(2.0), 3, "a", torch.tensor([1, 2])])
    [2.0, 3, 'a', [1, 2]]
    """
    kinds = set(map(type, values))
    if kinds == {PendingNumber}:
        return [value.read() for value in values]
    result = list(values)
    if kinds <= _PLAIN:
        return result
    places: dict[torch.device, list[int]] = {}
    for place, value in enumerate(values):
        if isinstance(value, PendingNumber):
            result[place] = value.read()
        elif isinstance(value, Tensor):
            places.setdefault(value.device, []).append(place)
    for found in places.values():
        for place, number in zip(found, _read_alike([values[place] for place in found]), strict=True):
            result[place] = number
    return result


def _read_alike(tensors: list[Tensor]) -> list[Any]:
    """Read tensors of one device."""
    first = tensors[0].dtype
    if all(tensor.dtype is first and tensor.dim() == 0 for tensor in tensors):
        numbers: list[Any] = torch.stack(tensors).tolist()
        return numbers
    return _read_mixed(tensors)


def _read_mixed(tensors: list[Tensor]) -> list[Any]:
    """Read tensors of several types or shapes: as bytes, for turning them into one type would change them."""
    # The widest types first, so that each number stands at a multiple of its size.
    order = sorted(range(len(tensors)), key=lambda place: -tensors[place].element_size())
    flat = [tensors[place].detach().reshape(-1).view(torch.uint8) for place in order]
    pieces = torch.split(torch.cat(flat).cpu(), [len(piece) for piece in flat])
    result: list[Any] = [None] * len(tensors)
    for place, piece in zip(order, pieces, strict=True):
        shape = tensors[place].shape if tensors[place].numel() != 1 else ()
        result[place] = piece.view(tensors[place].dtype).reshape(shape).tolist()
    return result
