"""What every source of samples offers, wherever its samples lie."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from treadle.data.order import HasOrder, Order, SequentialOrder
from treadle.data.sources.orders import PermutedOrder, SourceOrder


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
        """How many corrupt records were left out so far, in all workers of this process."""

    def fingerprint(self) -> Mapping[str, Any]:
        """Return what the data is known by, in plain data: it changes when a file does."""


class IndexedSource(HasOrder):
    """A source whose samples are fetched by their index: a map-style data set with an order of its own.

    A subclass defines `__len__` and `__getitem__`, and where it is quicker `__getitems__`, for many at once.

    Attributes:
        draws_nothing: Whether fetching a sample uses no randomness.
    """

    draws_nothing = True

    @property
    def length(self) -> int:
        """How many samples there are."""
        return len(self)

    @property
    def skipped(self) -> int:
        """How many corrupt records were left out so far."""
        return 0

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

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        return [self[index] for index in indices]
