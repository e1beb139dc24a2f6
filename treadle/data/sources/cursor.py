"""The place in a source that is read on, and the buffer through which it is shuffled."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from treadle.data.sources.permutation import permuted

Block = tuple[list[Any], Any]
"""Some records that follow each other, and the place behind them."""

UNSHUFFLED = 256
"""Records of a block where nothing is shuffled."""


class ReadInBlocks(Protocol):
    """What a cursor, and who makes batches, need of a streamed source."""

    buffer: int
    epoch: int
    transform: Callable[[Any], Any] | None

    @property
    def draws_nothing(self) -> bool | None:
        """Whether making a sample uses no randomness."""

    def blocks(self, size: int, seed: int, state: Any) -> Iterator[Block]:
        """Read records in blocks of `size`, each with the place behind it."""


class Cursor:
    """Reads records of a pass in their order, shuffled, and knows its place.

    Args:
        source: The source.
        seed: The seed of the pass.
        state: A place that a cursor of this pass had; None is the start.
    """

    def __init__(self, source: ReadInBlocks, *, seed: int, state: Mapping[str, Any] | None) -> None:
        self._seed, self._shuffles = seed, bool(source.buffer)
        self._before = None if state is None else state["block"]
        self._behind = self._before
        self._number = -1 if state is None else int(state["number"]) - 1
        self._place = 0 if state is None else int(state["place"])
        self._blocks = source.blocks(source.buffer or UNSHUFFLED, seed, self._before)
        self._records: list[Any] = []
        self._opened = False

    def take(self, count: int) -> list[Any]:
        """Return the next records; fewer, or none, at the end."""
        found: list[Any] = []
        while len(found) < count:
            if (self._place >= len(self._records) or not self._opened) and not self._next_block():
                break
            more = self._records[self._place : self._place + count - len(found)]
            found += more
            self._place += len(more)
        return found

    def _next_block(self) -> bool:
        block = next(self._blocks, None)
        if block is None:
            return False
        if self._opened:
            self._place = 0
        self._opened = True
        records, behind = block
        self._number += 1
        self._before, self._behind = self._behind, behind
        if self._shuffles:
            order = permuted(np.arange(len(records)), len(records), "buffer", self._seed, self._number)
            records = [records[place] for place in order.tolist()]
        self._records = records
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return the place: the block that is being read, and how far."""
        return {"block": self._before, "number": max(self._number, 0), "place": self._place}
