"""What every source of samples offers, wherever its samples lie."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from treadle.data.order import HasOrder, Order, SequentialOrder
from treadle.data.sources.orders import PermutedOrder, SourceOrder
from treadle.data.sources.records import CorruptRecords


@runtime_checkable
class Source(Protocol):
    """Samples that may be more than fit into memory.

    A source is either *indexed* (`IndexedSource`: its length is known and any sample is fetched by its index) or
    *streamed* (`StreamedSource`: it is read by a cursor, which has a state). A trainer takes both.
    """

    @property
    def length(self) -> int | None:
        """How many samples there are; None if that is not known before they are read."""

    @property
    def skipped(self) -> int:
        """How many corrupt records were left out so far, by this process and its workers."""

    def fingerprint(self) -> Mapping[str, Any]:
        """Return what the data is known by, in plain data: it changes when a file does."""


class IndexedSource(HasOrder):
    """A source whose samples are fetched by their index: a map-style data set with an order of its own.

    A subclass defines `__len__`, and either `read_one` or, where that is quicker, `read`.

    Args:
        transform: Makes a sample of a record; what it draws from Python's, NumPy's or torch's generators is seeded for
            each sample. None leaves records as they are.
        on_corrupt: "raise" makes a record that cannot be read an error; "skip" takes the next one in its place, and
            counts it.
    """

    transform: Callable[[Any], Any] | None = None

    def __init__(self, *, transform: Callable[[Any], Any] | None = None, on_corrupt: str = "raise") -> None:
        self.transform = transform
        self.corrupt = CorruptRecords(on_corrupt, type(self).__name__)

    @property
    def draws_nothing(self) -> bool | None:
        """Whether fetching a sample uses no randomness: True without a transform; of one it is not known."""
        return True if self.transform is None else None

    @property
    def length(self) -> int:
        """How many samples there are."""
        return len(self)

    @property
    def skipped(self) -> int:
        """How many corrupt records were left out so far, by this process and its workers."""
        return self.corrupt.count

    def fingerprint(self) -> Mapping[str, Any]:
        """Return what the data is known by."""
        return {}

    def order(self, seed: int) -> SourceOrder:
        """Return the order of the epochs of a run with this seed."""
        return PermutedOrder(len(self), seed)

    def in_sequence(self) -> Order:
        """Return the order of epochs that are not shuffled."""
        return SequentialOrder(len(self))

    def __len__(self) -> int:
        raise NotImplementedError(f"{type(self).__name__} does not say how many samples it has; define __len__")

    def read_one(self, index: int) -> Any:
        """Return the record at `index`.

        Raises:
            CorruptRecordError: It cannot be read.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot read a record; define read_one")

    def read(self, indices: Sequence[int]) -> list[Any]:
        """Return the records at `indices`."""
        return [self.corrupt.read(index, len(self), self.read_one) for index in indices]

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        record = self.read([index])[0]
        return record if self.transform is None else self.transform(record)

    @property
    def __getitems__(self) -> Callable[[Sequence[int]], list[Any]] | None:
        # A transform is seeded for each sample, so that it draws the same whoever else is in its batch.
        return self.read if self.transform is None else None
