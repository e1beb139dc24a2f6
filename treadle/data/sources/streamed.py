"""Sources that can only be read on: by a cursor that keeps its place, and shuffled through a buffer."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from torch.utils.data import IterableDataset

from treadle.data.seeds import fold_seed
from treadle.data.source_state import HasReader, loses_samples
from treadle.data.sources.cursor import Block, Cursor
from treadle.data.sources.mixture import BLOCK, shares_of
from treadle.data.sources.permutation import permuted
from treadle.data.sources.reader import BatchReader
from treadle.data.sources.source import IndexedSource
from treadle.errors import ConfigError, DataError, require_positive


class StreamedSource(HasReader, IterableDataset[Any]):
    """A source that is read from its start, or from a place that it gave out before.

    A subclass defines `blocks`. A trainer reads blocks of `buffer` records, in each of which the records are permuted:
    it is what a buffer that shuffles does, and a run that resumes reads one block again and not the whole epoch.

    Args:
        buffer: How many records are shuffled together; 0 leaves them in the order of the source.
        transform: Makes a sample of a record; what it draws from Python's, NumPy's or torch's generators is seeded for
            each sample. None leaves records as they are.

    Attributes:
        epoch: The epoch that is read next.
    """

    length: int | None = None

    def __init__(self, *, buffer: int = 1000, transform: Callable[[Any], Any] | None = None) -> None:
        if buffer:
            require_positive(f"{type(self).__name__}: buffer", buffer)
        self.buffer, self.transform = buffer, transform
        self.epoch = 0

    @property
    def draws_nothing(self) -> bool | None:
        """Whether making a sample uses no randomness: True without a transform; of one it is not known."""
        return True if self.transform is None else None

    def fingerprint(self) -> Mapping[str, Any]:
        """Return what the data is known by."""
        return {}

    def set_epoch(self, epoch: int) -> None:
        """Note which epoch is read next."""
        self.epoch = epoch

    @abstractmethod
    def blocks(self, size: int, seed: int, state: Any) -> Iterator[Block]:
        """Read records of the epoch in blocks of `size`, each with the place behind it; the last may be shorter.

        Args:
            size: Records of a block.
            seed: One for each pass over the data, should the source draw.
            state: The place to begin at, which `blocks` gave out before; None is the start.
        """

    def reader(self, loader: Any, **of_stream: Any) -> Any:
        """Return what reads batches for a stream."""
        return BatchReader(loader, self, **of_stream)

    def __iter__(self) -> Iterator[Any]:
        cursor = Cursor(self, seed=self.epoch, state=None)
        records = iter(lambda: cursor.take(1), [])
        return (one[0] if self.transform is None else self.transform(one[0]) for one in records)


class HuggingFaceStream(StreamedSource):
    """Samples of a streamed data set of Hugging Face, a `datasets.IterableDataset`, in an exact order.

    From epoch to epoch `datasets` changes the order of the shards, and the buffer that of the rows. Such a data set
    has no fingerprint: where its data changed since the run began, nobody is told.

    Args:
        dataset: The data set, not shuffled; `buffer` shuffles it, and that can be resumed.
        buffer: How many rows are shuffled together; 0 leaves them in the order of the data set.
        transform: Makes a sample of a row; None leaves it as it is.

    Raises:
        DataError: It is not streamed, or shuffled already.
    """

    def __init__(self, dataset: Any, *, buffer: int = 1000, transform: Callable[[Any], Any] | None = None) -> None:
        super().__init__(buffer=buffer, transform=transform)
        if not (hasattr(dataset, "iter") and hasattr(dataset, "load_state_dict")):
            raise DataError(
                f"HuggingFaceStream({type(dataset).__name__}) is no datasets.IterableDataset; one with an index is for "
                "HuggingFace"
            )
        if loses_samples(dataset):
            raise DataError(
                "HuggingFaceStream: the data set is shuffled by itself, or maps tables, and its state does not hold "
                "the samples in between; leave its shuffle() out and pass buffer="
            )
        # All of its shards, as one that was never read: the place of the one that was passed is not touched.
        self.dataset = dataset.shard(num_shards=1, index=0)
        self._fresh = self.dataset.state_dict()

    def blocks(self, size: int, seed: int, state: Any) -> Iterator[Block]:
        """Read rows in blocks."""
        self.dataset.load_state_dict({**(self._fresh if state is None else state), "epoch": self.epoch})
        self.dataset.set_epoch(self.epoch)
        # By blocks `datasets` gives all shards to every worker, which rows one by one would be divided among.
        for columns in self.dataset.iter(batch_size=size):
            count = len(next(iter(columns.values())))
            rows = [{name: values[place] for name, values in columns.items()} for place in range(count)]
            yield rows, self.dataset.state_dict()


class MixtureStream(StreamedSource):
    """Samples of several sources, each drawn as often as its weight says, where some are streamed.

    Of every 10,000 draws each source has exactly its share. A source that is through begins anew; every epoch begins
    each source at its start, in another order.

    Args:
        sources: The sources by name, streamed or indexed.
        weights: How often each is drawn; of any sum.
        length: Samples of an epoch; None ends it when a streamed source is through.

    Attributes:
        shares: Draws of each source in 10,000.

    Raises:
        ConfigError: Weights and sources do not fit, a weight is not above 0, or the length is none.
    """

    def __init__(self, sources: Mapping[str, Any], weights: Mapping[str, float], *, length: int | None = None) -> None:
        super().__init__(buffer=0)
        for name, source in sources.items():
            if not isinstance(source, (IndexedSource, StreamedSource)):
                raise ConfigError(f"MixtureStream: {name!r} is a {type(source).__name__}, and no source")
        if weights.keys() != sources.keys() or not sources:
            raise ConfigError(f"MixtureStream: weights for {list(weights)}, and the sources are {list(sources)}")
        if length is not None:
            require_positive("MixtureStream: length", length)
        elif not any(isinstance(source, StreamedSource) for source in sources.values()):
            raise ConfigError("MixtureStream: no source is streamed; use Mixture, or say how long an epoch is: length=")
        self.sources = dict(sources)
        self.shares = shares_of({name: weights[name] for name in sources})
        self.length = length

    @property
    def draws_nothing(self) -> bool | None:
        """Whether no source uses randomness."""
        return True if all(source.draws_nothing for source in self.sources.values()) else None

    @property
    def skipped(self) -> int:
        """How many corrupt records were left out so far, of all sources."""
        return sum(source.skipped for source in self.sources.values())

    def set_epoch(self, epoch: int) -> None:
        """Note which epoch is read next, in the sources too."""
        super().set_epoch(epoch)
        for source in self.sources.values():
            if isinstance(source, StreamedSource):
                source.set_epoch(epoch)

    def fingerprint(self) -> Mapping[str, Any]:
        """Return what each source is known by, and its share."""
        return {
            name: {"share": share, **source.fingerprint()}
            for (name, source), share in zip(self.sources.items(), self.shares, strict=True)
        }

    def blocks(self, size: int, seed: int, state: Any) -> Iterator[Block]:
        """Draw records in blocks."""
        place = 0 if state is None else int(state["place"])
        states = [None] * len(self.sources) if state is None else state["sources"]
        parts = [
            _Part(source, fold_seed(seed, "source", number), states[number])
            for number, source in enumerate(self.sources.values())
        ]
        bounds = np.cumsum(self.shares)
        ended = False
        while not ended and (self.length is None or place < self.length):
            count = size if self.length is None else min(size, self.length - place)
            records: list[Any] = []
            for which in self._sources_of(place, count, seed, bounds):
                record = parts[which].next(ends=self.length is None)
                if ended := record is _END:
                    break
                records.append(record)
            place += len(records)
            if records:
                yield records, {"place": place, "sources": [part.state_dict() for part in parts]}

    @staticmethod
    def _sources_of(place: int, count: int, seed: int, bounds: Any) -> Iterator[int]:
        for draw in range(place, place + count):
            block, within = divmod(draw, BLOCK)
            slot = permuted(np.array([within]), BLOCK, "mixture", seed, block)
            yield int(np.searchsorted(bounds, slot, side="right")[0])


_END = object()


class _Part:
    """One source of a mixture, read on and on.

    Args:
        source: The source.
        seed: Its seed in this pass.
        state: The place that it had; None is the start.
    """

    def __init__(self, source: Any, seed: int, state: Mapping[str, Any] | None) -> None:
        self._source, self._seed = source, seed
        self._passed = 0 if state is None else int(state["passed"])
        self._drawn = 0 if state is None else int(state["drawn"])
        self._open(None if state is None else state["cursor"])

    def _open(self, state: Any) -> None:
        seed = fold_seed(self._seed, self._passed)
        if isinstance(self._source, StreamedSource):
            self._cursor = Cursor(self._source, seed=seed, state=state)
        else:
            self._order = self._source.order(seed)
            self._order.begin(0)

    def next(self, *, ends: bool) -> Any:
        """Return the next sample; where a source that is streamed `ends` the epoch, its end may come instead."""
        for _ in range(2):
            found = self._take()
            if found:
                self._drawn += 1
                return found[0]
            if ends and isinstance(self._source, StreamedSource):
                return _END
            self._passed, self._drawn = self._passed + 1, 0
            self._open(None)
        raise DataError("MixtureStream: a source gives no sample; leave it out")

    def _take(self) -> list[Any]:
        if isinstance(self._source, StreamedSource):
            transform = self._source.transform
            return [record if transform is None else transform(record) for record in self._cursor.take(1)]
        return [self._source[index] for index in self._order.slice(self._drawn, self._drawn + 1)]

    def state_dict(self) -> dict[str, Any]:
        """Return the place."""
        cursor = self._cursor.state_dict() if isinstance(self._source, StreamedSource) else None
        return {"passed": self._passed, "drawn": self._drawn, "cursor": cursor}
