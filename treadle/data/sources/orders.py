"""Orders of the samples of a source, each place of which is calculated by itself."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from treadle.data.order import numbered
from treadle.data.sources.permutation import Places, permuted


class SourceOrder(ABC):
    """An order that depends on its seed and the number of a pass alone.

    Args:
        length: How many places a pass has.
        seed: What it is drawn by.
    """

    def __init__(self, length: int, seed: int) -> None:
        self._length, self.seed = length, seed
        self._epoch = self._passed = 0

    @abstractmethod
    def at(self, places: Places, epoch: int, passed: int = 0) -> Places:
        """Return the indices at `places` of an epoch, when `passed` others were made over it before."""

    def begin(self, epoch: int, passed: int = 0) -> None:
        """Get ready for an epoch, or another pass over it."""
        self._epoch, self._passed = epoch, passed

    def aside(self, epoch: int, seed: int) -> "SourceOrder":
        """Return the order itself, which does not move once it has begun."""
        return self

    def reseed(self, seed: int) -> None:
        """Take another seed."""
        self.seed = seed

    def __len__(self) -> int:
        return self._length

    def slice(self, start: int, stop: int) -> list[Any]:
        """Return the indices at places `start` to `stop`."""
        indices: list[Any] = self._indices(start, stop).tolist()
        return indices

    def tensor(self, start: int, stop: int) -> Tensor:
        """Return these indices as a tensor."""
        return torch.from_numpy(self._indices(start, stop))

    def _indices(self, start: int, stop: int) -> Places:
        return self.at(np.arange(start, max(start, min(stop, self._length))), self._epoch, self._passed)


class PermutedOrder(SourceOrder):
    """Every sample once, in an order that takes no memory."""

    def at(self, places: Places, epoch: int, passed: int = 0) -> Places:
        """Return the indices at `places` of an epoch."""
        return permuted(places, self._length, "samples", self.seed, numbered(epoch, passed))


class BlockOrder(SourceOrder):
    """Every sample once, so that samples that lie together in a file are drawn near each other.

    The blocks of the files, such as the row groups of a Parquet file, are permuted; so many of them at a time are a
    window, and the samples of a window are permuted. It is what shuffling by shard and through a buffer comes to,
    but any place is entered directly.

    Args:
        sizes: Samples of each block.
        seed: What it is drawn by.
        window: How many blocks are shuffled together.
    """

    def __init__(self, sizes: Sequence[int], seed: int, window: int) -> None:
        self._sizes = np.asarray(sizes, dtype=np.int64)
        self._starts = np.concatenate([[0], np.cumsum(self._sizes)])
        self._window = window
        self._laid_out = lru_cache(maxsize=8)(self._lay_out)
        super().__init__(int(self._starts[-1]), seed)

    def _lay_out(self, seed: int, turn: int) -> tuple[Places, Places, Places]:
        """Return the blocks in their order, where each ends, and where each window begins."""
        blocks = permuted(np.arange(len(self._sizes)), len(self._sizes), "blocks", seed, turn)
        ends = np.cumsum(self._sizes[blocks])
        firsts = np.arange(0, len(blocks), self._window)
        return blocks, ends, np.where(firsts > 0, ends[firsts - 1], 0)

    def at(self, places: Places, epoch: int, passed: int = 0) -> Places:
        """Return the indices at `places` of an epoch."""
        turn = numbered(epoch, passed)
        blocks, ends, begins = self._laid_out(self.seed, turn)
        stops = np.append(begins[1:], self._length)
        windows = np.searchsorted(stops, places, side="right")
        laid = np.empty_like(places)
        for window in np.unique(windows):
            mine = windows == window
            begin, count = int(begins[window]), int(stops[window] - begins[window])
            laid[mine] = begin + permuted(places[mine] - begin, count, "window", self.seed, turn, int(window))
        which = np.searchsorted(ends, laid, side="right")
        block = blocks[which]
        return self._starts[block] + (laid - (ends[which] - self._sizes[block]))

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "_laid_out"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _laid_out=lru_cache(maxsize=8)(self._lay_out))
