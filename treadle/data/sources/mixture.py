"""Weighted mixtures of sources."""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from treadle.data.collate import HasRows, JoinedRows, batch_reader
from treadle.data.order import Order, SequentialOrder
from treadle.data.seeds import fold_seed
from treadle.data.sources.orders import SourceOrder
from treadle.data.sources.permutation import Places, permuted
from treadle.data.sources.source import IndexedSource
from treadle.data.sources.token_bins import TokenRows
from treadle.errors import ConfigError, require_positive

logger = logging.getLogger(__name__)

BLOCK = 10_000
"""Draws in which each source has exactly its share; weights are rounded to so many parts."""


def shares_of(weights: Mapping[str, float]) -> list[int]:
    """Return how many draws of a block each source has, for weights of any sum.

    >>> shares_of({"web": 2, "code": 1, "books": 1})
    [5000, 2500, 2500]

    Raises:
        ConfigError: A weight is not above 0, or too small to be drawn in a block.
    """
    for name, weight in weights.items():
        require_positive(f"Mixture: the weight of {name!r}", weight, whole=False)
    total = sum(weights.values())
    exact = [BLOCK * weight / total for weight in weights.values()]
    shares = [int(share) for share in exact]
    # What is left over goes where most was cut off.
    for place in sorted(range(len(exact)), key=lambda place: shares[place] - exact[place])[: BLOCK - sum(shares)]:
        shares[place] += 1
    for name, share in zip(weights, shares, strict=True):
        if not share:
            raise ConfigError(
                f"Mixture: {name!r} has {weights[name] / total:.2g} of the weight, and a mixture is drawn in parts of "
                f"1/{BLOCK}; give it more, or leave it out"
            )
    return shares


class Mixture(IndexedSource, HasRows):
    """Samples of several sources, each drawn as often as its weight says.

    Of every 10,000 draws each source has exactly its share, in an order that is shuffled. The draws of an epoch
    follow those of the epoch before: what a large source did not show in one it shows in the next. A source that is
    through begins anew, in another order.

    Args:
        sources: The sources by name, all of them indexed.
        weights: How often each is drawn; of any sum. None is by their lengths: as if they stood in one file.
        length: Samples of an epoch; "first" ends it when the first source is through, "last" when every source was
            seen once.

    Attributes:
        shares: Draws of each source in 10,000.
        epoch_length: Samples of an epoch.

    Raises:
        ConfigError: Weights and sources do not fit, a weight is not above 0, or the length is none.
    """

    def __init__(
        self,
        sources: Mapping[str, Any],
        weights: Mapping[str, float] | None = None,
        *,
        length: int | str = "first",
    ) -> None:
        super().__init__()
        if not sources:
            raise ConfigError("Mixture: no sources; give them by name, such as {'web': web, 'code': code}")
        for name, source in sources.items():
            if not isinstance(source, IndexedSource):
                raise ConfigError(
                    f"Mixture: {name!r} is a {type(source).__name__}, and no indexed source; wrap a datasets.Dataset "
                    "in HuggingFace; to mix what is streamed, use MixtureStream"
                )
        self.sources, self._weighted = dict(sources), weights is not None
        given = {name: float(len(source)) for name, source in sources.items()} if weights is None else dict(weights)
        if given.keys() != sources.keys():
            raise ConfigError(f"Mixture: weights for {list(given)}, and the sources are {list(sources)}")
        self.shares = shares_of({name: given[name] for name in sources})
        self._ends = np.cumsum([len(source) for source in sources.values()])
        # Of a mixture in a mixture that is its epoch.
        self.lengths = [len(source.order(0)) for source in sources.values()]
        self._starts = np.concatenate([[0], self._ends[:-1]])
        self.epoch_length = self._epoch_length(length)

    def _epoch_length(self, length: int | str) -> int:
        if length not in ("first", "last"):
            return int(require_positive("Mixture: length", length))
        draws = [BLOCK * count / share for count, share in zip(self.lengths, self.shares, strict=True)]
        return int(min(draws)) or 1 if length == "first" else int(-(-max(draws) // 1))

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def draws_nothing(self) -> bool | None:
        """Whether no source uses randomness."""
        return True if all(source.draws_nothing for source in self.sources.values()) else None

    @property
    def skipped(self) -> int:
        """How many corrupt records were left out so far, of all sources."""
        return sum(source.skipped for source in self.sources.values())

    def order(self, seed: int) -> SourceOrder:
        """Return the order of the epochs of a run with this seed."""
        return MixtureOrder(self, seed)

    def in_sequence(self) -> Order:
        """Return the order without shuffling: every sample once, source by source; weights have no part in it."""
        if self._weighted:
            logger.info("a Mixture that is not shuffled gives each sample once, source by source, whatever the weights")
        return SequentialOrder(len(self))

    def _find(self, index: int) -> tuple[Any, int]:
        place = int(np.searchsorted(self._ends, index, side="right"))
        return list(self.sources.values())[place], index - int(self._starts[place])

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        source, within = self._find(index)
        return source[within]

    @property
    def __getitems__(self) -> Callable[[Sequence[int]], list[Any]] | None:
        return self.read if self.draws_nothing else None

    def read(self, indices: Sequence[int]) -> list[Any]:
        """Return the samples at `indices`."""
        which = np.searchsorted(self._ends, indices, side="right")
        found: list[Any] = [None] * len(which)
        for place, source in enumerate(self.sources.values()):
            mine = np.flatnonzero(which == place)
            within = [int(indices[int(one)]) - int(self._starts[place]) for one in mine]
            samples = source.read(within) if source.__getitems__ else [source[one] for one in within]
            for one, sample in zip(mine, samples, strict=True):
                found[one] = sample
        return found

    def rows(self) -> Any:
        """Return what makes batches at once, where every source is of token bins."""
        parts = [batch_reader(source) for source in self.sources.values()]
        bins = [part for part in parts if isinstance(part, TokenRows)]
        alike = len({part.bins.keys for part in bins}) == 1
        return JoinedRows(bins, self._ends.tolist()) if alike and len(bins) == len(parts) else None

    def fingerprint(self) -> Mapping[str, Any]:
        """Return what each source is known by, and its share."""
        return {
            name: {"share": share, **source.fingerprint()}
            for (name, source), share in zip(self.sources.items(), self.shares, strict=True)
        }


class MixtureOrder(SourceOrder):
    """The order of a mixture: at each place the index of a sample, calculated by itself.

    Draw number n of the whole run is in block n // 10,000. A permutation of the block gives it a slot there. The slots
    belong to the sources in turn, so many to each as its share: that is the source, and the number of the draw
    among those of the source.

    Args:
        mixture: The mixture.
        seed: What it is drawn by.
    """

    def __init__(self, mixture: Mixture, seed: int) -> None:
        super().__init__(mixture.epoch_length, seed)
        self._mixture = mixture
        self._bounds = np.concatenate([[0], np.cumsum(mixture.shares)])
        self._order_of = lru_cache(maxsize=64)(self._make_order)

    def _make_order(self, place: int, seed: int, passed: int) -> Any:
        source = list(self._mixture.sources.values())[place]
        return source.order(fold_seed(seed, "source", place, passed))

    def at(self, places: Places, epoch: int, passed: int = 0) -> Places:
        """Return the indices at `places` of an epoch."""
        draws = places + epoch * self._length
        blocks = draws // BLOCK
        slots = np.empty_like(draws)
        for block in np.unique(blocks):
            mine = blocks == block
            slots[mine] = permuted(draws[mine] - block * BLOCK, BLOCK, "mixture", self.seed, passed, int(block))
        which = np.searchsorted(self._bounds, slots, side="right") - 1
        found = np.empty_like(draws)
        for place in np.unique(which):
            mine = which == place
            own = blocks[mine] * self._mixture.shares[place] + slots[mine] - self._bounds[place]
            found[mine] = self._mixture._starts[place] + self._drawn(int(place), own, passed)
        return found

    def _drawn(self, place: int, draws: Places, passed: int) -> Places:
        """Return which sample of a source its draws are: those of its first pass, its second, and so on."""
        length = self._mixture.lengths[place]
        order = self._order_of(place, self.seed, passed)
        passes, within = draws // length, draws % length
        found = np.empty_like(draws)
        for number in np.unique(passes):
            mine = passes == number
            found[mine] = order.at(within[mine], int(number))
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "_order_of"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _order_of=lru_cache(maxsize=64)(self._make_order))
