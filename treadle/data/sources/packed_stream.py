"""Documents that come one after the other, packed into rows of one length."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from torch import Tensor

from treadle.data.sources.cursor import Block, Cursor
from treadle.data.sources.packed import (
    BUFFER,
    FOR_TRANSFORMERS,
    PackedFields,
    PackingReport,
    RowWriter,
    best_fit,
    check_packing,
    cut,
)
from treadle.data.sources.streamed import StreamedSource
from treadle.errors import DataError

logger = logging.getLogger(__name__)


class PackedStream(StreamedSource):
    """Rows of one length, filled with documents that come one after the other: tokenised while training, or streamed.

    `buffer` documents are read and packed, then the next ones. The same documents in the same order make the same rows,
    which are those of `PackedDocuments`. Its place is that of the documents before those at hand, and how many rows of
    these were given. If the documents have no state, they are read again up to that place.

    Args:
        documents: What gives documents, each a row of tokens: a streamed source, or any iterable. If it has
            `state_dict` and `load_state_dict`, nothing before the place is read again.
        row_length: The tokens of a row: the context of the model.
        fields: What the parts of a row are called.
        long: What is done with a document that is longer than a row: "split", "drop" or "refuse".
        buffer: How many documents are looked at together; more of them leave less padding.
        padding: The token of places that are left over.
        transform: Makes a sample of a row; None leaves it as it is.
    """

    def __init__(
        self,
        documents: Iterable[Any],
        row_length: int,
        *,
        fields: PackedFields = FOR_TRANSFORMERS,
        long: str = "split",
        buffer: int = BUFFER,
        padding: int = 0,
        transform: Callable[[Any], Any] | None = None,
    ) -> None:
        check_packing(row_length, long, buffer)
        # Rows come in the order in which they are made: it is the documents that are to be shuffled.
        super().__init__(buffer=0, transform=transform)
        self.documents, self.row_length, self.long, self.together = documents, row_length, long, buffer
        self._writer = RowWriter(row_length, fields, padding)
        self._counts = PackingReport(0, 0, row_length, 0, 0, 0, 0, 0)
        # A state that was loaded may stick; each pass begins here.
        self._fresh = _place_of(documents)

    @property
    def report(self) -> PackingReport:
        """What came of the documents that this process has read in the last pass."""
        return self._counts

    @property
    def skipped(self) -> int:
        """How many corrupt records of the documents were left out so far."""
        return int(getattr(self.documents, "skipped", 0))

    def fingerprint(self) -> Mapping[str, Any]:
        """Return how rows are made, and what the documents are known by."""
        own = getattr(self.documents, "fingerprint", None)
        made = {"row_length": self.row_length, "long": self.long, "buffer": self.together}
        return {"packing": made, **(own() if callable(own) else {})}

    def set_epoch(self, epoch: int) -> None:
        """Note which epoch is read next, in the documents too."""
        super().set_epoch(epoch)
        if hasattr(self.documents, "set_epoch"):
            self.documents.set_epoch(epoch)

    def blocks(self, size: int, seed: int, state: Any) -> Iterator[Block]:
        """Read documents, so many at a time, and give the rows that they make; `size` has no part in it."""
        counts = (
            PackingReport(0, 0, self.row_length, 0, 0, 0, 0, 0) if state is None else PackingReport(*state["counts"])
        )
        read = counts.documents
        documents = self._opened(seed, read, None if state is None else state["documents"])
        while block := documents.take(self.together):
            rows, counts = self._packed(block, counts)
            self._counts = counts
            yield rows, {"documents": documents.state_dict(), "counts": list(counts)}
        if not counts.rows:
            raise DataError(f"no row can be made of {counts}")
        if counts.documents > read:
            logger.info("%s", counts)

    def _opened(self, seed: int, read: int, place: Any) -> "_Streamed | _Iterated":
        if isinstance(self.documents, StreamedSource):
            return _Streamed(self.documents, seed, place)
        return _Iterated(self.documents, read, place, self._fresh)

    def _packed(self, block: list[Any], counts: PackingReport) -> tuple[list[dict[str, Tensor]], PackingReport]:
        pieces = cut([len(document) for document in block], self.row_length, self.long, number=counts.documents)
        rows = best_fit(pieces.length.tolist(), self.row_length)
        if pieces.dropped and not counts.dropped:
            logger.warning("documents of more than row_length=%d tokens are left out", self.row_length)
        parts = [
            block[document][start : start + length]
            for document, start, length in zip(*(part.tolist() for part in pieces[:3]), strict=True)
        ]
        written = (self._writer.write([[parts[piece] for piece in row]]) for row in rows)
        return [{name: part[0] for name, part in row.items()} for row in written], PackingReport(
            counts.documents + len(block),
            counts.rows + len(rows),
            self.row_length,
            counts.tokens + int(pieces.length.sum()),
            counts.split + pieces.split,
            counts.dropped + pieces.dropped,
            counts.empty + pieces.empty,
            max([counts.most_pieces, *map(len, rows)]),
        )


class _Streamed:
    """The documents of a streamed source, through its own buffer.

    Args:
        source: The source.
        seed: The seed of the pass.
        place: Where to begin; None is the start.
    """

    def __init__(self, source: StreamedSource, seed: int, place: Any) -> None:
        self._transform = source.transform
        self._cursor = Cursor(source, seed=seed, state=place)
        self.state_dict = self._cursor.state_dict

    def take(self, count: int) -> list[Any]:
        """Return the next documents; fewer, or none, at the end."""
        records = self._cursor.take(count)
        return records if self._transform is None else [self._transform(record) for record in records]


class _Iterated:
    """The documents of an iterable.

    Args:
        documents: The iterable.
        read: How many were read before the place.
        place: The state to begin at; None where there is none.
        fresh: The state at the start.
    """

    def __init__(self, documents: Any, read: int, place: Any, fresh: Any) -> None:
        self._documents = documents
        if place is not None and fresh is None:
            raise DataError(
                f"the documents were saved with a state, but a {type(documents).__name__} has no load_state_dict to "
                "take it back; pass the same kind of documents"
            )
        if fresh is not None:
            documents.load_state_dict(fresh if place is None else place)
        self._left = iter(documents)
        if read and place is None:
            logger.info("the documents have no state: %d of them are read again", read)
            next(islice(self._left, read, read), None)

    def take(self, count: int) -> list[Any]:
        """Return the next documents; fewer, or none, at the end."""
        return list(islice(self._left, count))

    def state_dict(self) -> Any:
        """Return the place; None if the documents do not know it."""
        return _place_of(self._documents)


def _place_of(documents: Any) -> Any:
    takes_it_back = hasattr(documents, "state_dict") and hasattr(documents, "load_state_dict")
    return documents.state_dict() if takes_it_back else None
