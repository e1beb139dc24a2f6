"""Parquet files: rows of tables, decoded a row group at a time."""

import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate, get_worker_info

from treadle.data.batch import Batch
from treadle.data.collate import HasRows
from treadle.data.sources.orders import BlockOrder, PermutedOrder, SourceOrder
from treadle.data.sources.records import CorruptRecordError, by_name, found_files
from treadle.data.sources.source import IndexedSource
from treadle.errors import ConfigError, DataError, did_you_mean, importing, require_positive

ENDINGS = (".parquet", ".pq")
KEPT = 8
"""Row groups that are kept decoded where the order does not say how many are drawn from at a time."""


class Parquet(IndexedSource, HasRows):
    """Samples from the rows of Parquet files: dicts of a tensor, a word or a list for each column.

    A row group is decoded as a whole, so an epoch draws from `window` of them at a time: their rows are shuffled
    together, and the order of the row groups, of all files, is shuffled too.

    Args:
        path: A file, a folder, a pattern such as "part-*.parquet", or a list of these.
        columns: Which columns to read; None is all of them.
        window: How many row groups are shuffled together, and kept decoded; None permutes all rows, which decodes a row
            group for nearly every sample unless all of them fit.
        transform: Makes a sample of a row; None leaves it as it is.
        on_corrupt: "raise" makes a row group that cannot be read an error; "skip" takes rows of the next one in the
            place of its own, and counts them.

    Raises:
        DataError: There is no file, one is no Parquet file or has other columns, or they have no row.
        MissingDependencyError: pyarrow is not installed.
    """

    def __init__(
        self,
        path: str | Path | Sequence[str | Path],
        *,
        columns: Sequence[str] | None = None,
        window: int | None = KEPT,
        transform: Callable[[Any], Any] | None = None,
        on_corrupt: str = "raise",
    ) -> None:
        super().__init__(transform=transform, on_corrupt=on_corrupt)
        if window is not None:
            require_positive("Parquet: window", window)
        self.window = window
        self.paths = found_files(path, ENDINGS, "Parquet")
        self._marks: list[str] = []
        self._groups: list[tuple[int, int]] = []
        sizes: list[int] = []
        self.columns: list[str] = []
        for number, one in enumerate(self.paths):
            found = self._describe(one, columns)
            self._groups += [(number, group) for group in range(len(found))]
            sizes += found
        self.sizes = np.asarray(sizes, dtype=np.int64)
        self._starts = np.concatenate([[0], np.cumsum(self.sizes)])
        if not len(self):
            raise DataError(f"Parquet: {', '.join(map(str, self.paths[:3]))} has no row; give at least one")
        self._decoded: DecodedGroups | None = None

    def _describe(self, path: Path, columns: Sequence[str] | None) -> list[int]:
        """Look at a file, and return how many rows each of its row groups has."""
        file = _opened(path)
        names = list(file.schema_arrow.names)
        for column in columns or ():
            if column not in names:
                raise ConfigError(
                    f"Parquet: {path} has no column {column!r}{did_you_mean(column, names)}; it has {names}"
                )
        chosen = names if columns is None else list(columns)
        if self.columns and chosen != self.columns:
            raise DataError(f"Parquet: {path} has the columns {chosen}, and {self.paths[0]} has {self.columns}")
        self.columns = chosen
        self._marks.append(f"{path.stat().st_size} bytes, {_footer_checksum(path):08x}")
        return [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]

    def __len__(self) -> int:
        return int(self._starts[-1])

    def order(self, seed: int) -> SourceOrder:
        """Return the order of the epochs of a run with this seed."""
        if self.window is None:
            return PermutedOrder(len(self), seed)
        return BlockOrder(self.sizes.tolist(), seed, self.window)

    @property
    def decoded(self) -> "DecodedGroups":
        """The row groups that are decoded in this process."""
        if self._decoded is None:
            most = int(self.sizes.max())
            self._decoded = DecodedGroups(self._decode, self._starts, self.window or KEPT, most)
        return self._decoded

    def _decode(self, group: int) -> dict[str, Any]:
        number, within = self._groups[group]
        try:
            # Workers are beside each other already.
            table = _opened(self.paths[number]).read_row_group(
                within, columns=self.columns, use_threads=get_worker_info() is None
            )
            return {name: as_column(table.column(name)) for name in self.columns}
        except (OSError, ValueError) as error:
            corrupt = CorruptRecordError(
                f"{self.paths[number]}, row group {within} of rows {self._starts[group]} to "
                f"{self._starts[group + 1] - 1}: cannot be read ({error}); write the file again, or pass "
                "on_corrupt='skip'"
            )
            corrupt.following = int(self._starts[group + 1])
            raise corrupt from None

    def read_one(self, index: int) -> Any:
        """Return the row at `index`.

        Raises:
            CorruptRecordError: Its row group cannot be read.
        """
        return self.decoded.row(int(index))

    def rows(self) -> Any:
        """Return what makes batches of rows at once; None where each sample is made by itself."""
        return None if self.transform is not None or self.corrupt.skips else self.decoded

    def fingerprint(self) -> Mapping[str, Any]:
        """Return the size of each file, and a checksum of its footer, which describes all of its pages."""
        return by_name(self.paths, self._marks)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_decoded": None}


class DecodedGroups:
    """The columns of the row groups that were decoded last, laid out so that one call gathers a batch.

    Columns of numbers stand in one tensor for all groups that are kept, each group in a slot of its own.

    Args:
        decode: Returns the columns of a row group.
        starts: The first row of each group, and the end of the last.
        slots: How many groups are kept.
        most: Rows of the largest group.
    """

    def __init__(self, decode: Callable[[int], dict[str, Any]], starts: Any, slots: int, most: int) -> None:
        self.device = torch.device("cpu")
        self._decode, self._starts = decode, starts
        self._slots = min(slots, len(starts) - 1)
        self._most = most
        self._slot_of: OrderedDict[int, int] = OrderedDict()
        self._tensors: dict[str, Tensor] = {}
        self._lists: list[dict[str, list[Any]]] = [{} for _ in range(self._slots)]
        self._names: list[str] = []
        self._base = np.zeros(len(starts) - 1, dtype=np.int64)

    def row(self, index: int) -> dict[str, Any]:
        """Return one row."""
        group = int(np.searchsorted(self._starts, index, side="right")) - 1
        slot = self._load(group)
        within = index - int(self._starts[group])
        place = slot * self._most + within
        lists = self._lists[slot]
        # A copy: the next group in this slot is written over this one.
        return {
            name: lists[name][within] if name in lists else self._tensors[name][place].clone() for name in self._names
        }

    def __call__(self, index: Tensor) -> Batch:
        """Return the batch of the rows at `index`: what collating them would give."""
        places = index.numpy()
        groups = np.searchsorted(self._starts, places, side="right") - 1
        found, firsts = np.unique(groups, return_index=True)
        found = found[np.argsort(firsts)]
        if len(found) <= self._slots:
            return self._gathered(places, groups, found)
        # Those that the batch begins with are there; loading the rest puts them out.
        near = np.isin(groups, found[: self._slots])
        parts = [self(index[torch.from_numpy(mine)]) for mine in (near, ~near)]
        back = torch.from_numpy(np.argsort(np.concatenate([np.flatnonzero(near), np.flatnonzero(~near)])))
        return {name: _joined([part[name] for part in parts], back) for name in self._names}

    def _gathered(self, places: Any, groups: Any, found: Any) -> dict[str, Any]:
        for group in found:
            if int(group) in self._slot_of:
                self._slot_of.move_to_end(int(group))
        for group in found:
            self._load(int(group))
        within = places - self._starts[groups]
        at = torch.from_numpy(self._base[groups] + within)
        batch: dict[str, Any] = {}
        for name in self._names:
            tensor = self._tensors.get(name)
            if tensor is not None and not any(name in self._lists[self._slot_of[int(group)]] for group in found):
                batch[name] = tensor.index_select(0, at)
            else:
                batch[name] = default_collate([self._value(name, *one) for one in zip(groups, within, strict=True)])
        return batch

    def _value(self, name: str, group: Any, within: Any) -> Any:
        slot = self._slot_of[int(group)]
        lists = self._lists[slot]
        return lists[name][within] if name in lists else self._tensors[name][slot * self._most + int(within)]

    def _load(self, group: int) -> int:
        slot = self._slot_of.get(group)
        if slot is not None:
            self._slot_of.move_to_end(group)
            return slot
        columns = self._decode(group)
        full = len(self._slot_of) >= self._slots
        slot = self._slot_of.popitem(last=False)[1] if full else len(self._slot_of)
        self._slot_of[group] = slot
        self._base[group] = slot * self._most
        self._names = list(columns)
        lists = {name: self._put(name, column, slot) for name, column in columns.items()}
        self._lists[slot] = {name: values for name, values in lists.items() if values is not None}
        return slot

    def _put(self, name: str, column: Any, slot: int) -> list[Any] | None:
        """Keep a column: in the tensor of all groups, or as the list that is returned."""
        if not isinstance(column, Tensor):
            return list(column)
        tensor = self._tensors.get(name)
        if tensor is None:
            tensor = column.new_empty(self._slots * self._most, *column.shape[1:])
            self._tensors[name] = tensor
        if tensor.dtype != column.dtype or tensor.shape[1:] != column.shape[1:]:
            return list(column.unbind())
        first = slot * self._most
        tensor[first : first + len(column)] = column
        return None


def _joined(parts: list[Any], order: Tensor) -> Any:
    if isinstance(parts[0], Tensor):
        return torch.cat(parts).index_select(0, order)
    values = [value for part in parts for value in part]
    return [values[place] for place in order.tolist()]


def as_column(column: Any) -> Tensor | list[Any]:
    """Return a column of a table: a tensor of numbers, or of lists of numbers of one length, else a list.

    Args:
        column: A `pyarrow.ChunkedArray`.
    """
    import pyarrow as pa

    kind = column.type
    if column.null_count:
        return list(column.to_pylist())
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return _as_tensor(column.to_numpy())
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _as_rows(pa.concat_arrays(column.chunks) if column.num_chunks != 1 else column.chunk(0))
    return list(column.to_pylist())


def _as_rows(array: Any) -> Tensor | list[Any]:
    import pyarrow as pa

    flat, inner = array.flatten(), array.type.value_type
    if flat.null_count or not (pa.types.is_integer(inner) or pa.types.is_floating(inner)):
        return list(array.to_pylist())
    values = _as_tensor(flat.to_numpy())
    if pa.types.is_fixed_size_list(array.type):
        return values.view(len(array), -1)
    lengths = np.diff(array.offsets.to_numpy())
    if len(lengths) and (lengths == lengths[0]).all():
        return values.view(len(array), -1)
    return list(values.split(lengths.tolist()))  # type: ignore[no-untyped-call]


def _as_tensor(values: Any) -> Tensor:
    return torch.from_numpy(values if values.flags.writeable else values.copy())


def _opened(path: Path) -> Any:
    with importing("pyarrow", extra="data", user="Parquet"):
        import pyarrow as pa
        import pyarrow.parquet as pq
    try:
        return pq.ParquetFile(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"Parquet: {path} is no Parquet file that can be read: {error}") from None


def _footer_checksum(path: Path) -> int:
    with path.open("rb") as file:
        file.seek(-8, 2)
        size = int.from_bytes(file.read(4), "little")
        file.seek(-8 - size, 2)
        return zlib.crc32(file.read(size))
