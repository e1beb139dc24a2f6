"""Batches of streamed sources: read by workers, which all keep the same place, for any number of ranks."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from treadle.data import workers
from treadle.data.batch import Batch
from treadle.data.per_sample_rng import Place, SeededSamples, as_it_is
from treadle.data.source_copies import source_apart
from treadle.data.source_state import Repeated
from treadle.data.sources.cursor import Cursor, ReadInBlocks
from treadle.errors import ConfigError


class BatchReader:
    """The batches of a streamed source for one rank.

    Records are numbered as they are read, and a global batch is so many of them, whoever makes it. Every worker reads
    all records; it makes samples of those that are in its batches, which costs most of the time where there is a
    transform. With a batch comes the place behind it. So a run is resumed with any number of workers and of ranks.

    Args:
        loader: The loader of the user's, or the trainer's: how batches are made, and by how many workers.
        source: The source.
        rank: This rank.
        size: How many ranks share the batches.
        evaluation: Whether every sample counts exactly once.

    Attributes:
        source: The loader.
        shares: That the ranks' shares are cut here.

    Raises:
        ConfigError: The loader asks for what cannot be done.
    """

    shares = True
    is_read_out = False

    def __init__(self, loader: Any, source: ReadInBlocks, *, rank: int, size: int, evaluation: bool) -> None:
        if loader.batch_size is None:
            raise ConfigError(f"a {type(source).__name__} gives samples; give its loader a batch_size")
        self.source, self._samples = loader, source
        self._rank, self._size, self._evaluation = rank, size, evaluation
        self._state: dict[str, Any] = _START

    def take(self) -> dict[str, Any]:
        """Return the place behind the batch that was drawn last."""
        return self._state

    def load(self, state: Any, *, cut: bool = False) -> None:
        """Do nothing: an epoch begins at its start."""

    def forget(self) -> None:
        """Stand at the start of an epoch."""
        self._state = _START

    def restart(self) -> None:
        """Do nothing: every pass begins at its start."""

    def aside(self, name: str) -> "BatchReader":
        """Return a reader of the same, which this one does not notice."""
        loader = source_apart(self.source, name)
        return BatchReader(loader, loader.dataset, rank=self._rank, size=self._size, evaluation=self._evaluation)

    def open(self, state: Any, *, entering: bool, seed: int) -> Iterator[Batch]:
        """Open the source for an epoch.

        Args:
            state: The place to begin at; None is the start.
            entering: Whether that is in the middle of the epoch.
            seed: The seed of the pass.
        """
        self._state = state if state is not None and entering else _START
        loader = self.source
        made = MadeBatches(self, self._samples, self._state, seed)
        count = loader.num_workers
        if not count:
            return self._noting(iter(made))
        chosen = {
            "prefetch_factor": loader.prefetch_factor,
            "multiprocessing_context": loader.multiprocessing_context,
            "worker_init_fn": loader.worker_init_fn,
            "timeout": loader.timeout,
        }
        inner: Any = DataLoader(
            made, batch_size=None, num_workers=count, collate_fn=as_it_is, generator=torch.Generator(), **chosen
        )
        return self._noting(workers.begin(inner), inner)

    def _noting(self, batches: Iterator[Any], loader: Any = None) -> Iterator[Batch]:
        try:
            for batch, state in batches:
                self._state = state
                yield batch
        finally:
            if loader is not None:
                workers.release(loader)

    def cut(self, records: int) -> tuple[int, int]:
        """Return which records of a global batch are this rank's."""
        each, more = divmod(records, self._size)
        first = self._rank * each + min(self._rank, more)
        return first, first + each + (self._rank < more)

    @property
    def global_size(self) -> int:
        """Records of a global batch."""
        return int(self.source.batch_size) * self._size

    @property
    def repeats(self) -> bool:
        """Whether a rank without a record repeats one, to stay in step."""
        return not self._evaluation


_START: dict[str, Any] = {"shared": True, "read": 0, "cursor": None}


class MadeBatches(IterableDataset[Any]):
    """The batches of a pass, as one of several workers makes them, or this process all of them.

    Args:
        reader: Whose batches.
        source: The source.
        state: The place to begin at.
        seed: The seed of the pass.
    """

    def __init__(self, reader: BatchReader, source: ReadInBlocks, state: dict[str, Any], seed: int) -> None:
        self._reader, self._source, self._state, self._seed = reader, source, state, seed

    def __iter__(self) -> Iterator[tuple[Any, dict[str, Any]]]:
        worker = get_worker_info()
        mine, count = (0, 1) if worker is None else (worker.id, worker.num_workers)
        reader, loader = self._reader, self._reader.source
        cursor = Cursor(self._source, seed=self._seed, state=self._state["cursor"])
        samples = Samples(self._source)
        made = SeededSamples(samples, loader.collate_fn, self._seed)
        read, number = self._state["read"], 0
        while records := cursor.take(reader.global_size):
            if loader.drop_last and len(records) < reader.global_size:
                return
            first, last = reader.cut(len(records))
            empty = first == last
            if number % count == mine and not (empty and not reader.repeats):
                samples.hold(records, read)
                first, last = (0, 1) if empty else (first, last)
                batch = made.__getitems__(Place(self._source.epoch, range(read + first, read + last)))
                state = {"shared": True, "read": read + len(records), "cursor": cursor.state_dict()}
                yield (Repeated(batch) if empty else batch), state
            read += len(records)
            number += 1


class Samples(Dataset[Any]):
    """The samples of the records that are at hand, by their numbers in the pass.

    Args:
        source: Whose transform makes them.
    """

    def __init__(self, source: ReadInBlocks) -> None:
        self._source = source
        self._records: list[Any] = []
        self._first = 0

    @property
    def draws_nothing(self) -> bool | None:
        """Whether making a sample uses no randomness."""
        return self._source.draws_nothing

    def hold(self, records: list[Any], first: int) -> None:
        """Take the records that are numbered from `first` on."""
        self._records, self._first = records, first

    def __getitem__(self, number: int) -> Any:
        record = self._records[number - self._first]
        return record if self._source.transform is None else self._source.transform(record)
