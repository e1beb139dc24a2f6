"""Documents packed into rows of one length: what would be padding holds other documents."""

import logging
import zlib
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from treadle.data.collate import HasRows
from treadle.data.sources.cursor import Block, Cursor
from treadle.data.sources.source import IndexedSource
from treadle.data.sources.streamed import StreamedSource
from treadle.errors import DataError, check_choice, require_positive

logger = logging.getLogger(__name__)

IGNORED = -100
"""The target of a place whose prediction counts nothing."""
LONG = ("split", "drop", "refuse")
"""What may be done with a document that is longer than a row."""
BUFFER = 1024
"""How many pieces of documents are looked at together, if nobody says."""


class PackedFields(NamedTuple):
    """What the parts of a packed row are called, and where the target of a token stands.

    Attributes:
        tokens: The tokens.
        targets: What is to be predicted; -100 where that counts nothing.
        positions: The place of each token in its document. A 0 begins a document.
        next_token: Whether the target at a place is the token after it. Otherwise it is the token at it, for models
            that shift the labels themselves.
    """

    tokens: str
    targets: str
    positions: str
    next_token: bool


FOR_TRANSFORMERS = PackedFields("input_ids", "labels", "position_ids", next_token=False)
"""The names that models of transformers have; these shift the labels themselves."""
NEXT_TOKEN = PackedFields("tokens", "targets", "positions", next_token=True)
"""The names of the example GPT: the target at each place is the next token."""


class PackingReport(NamedTuple):
    """What came of packing.

    Attributes:
        documents: The documents that were given.
        rows: The rows that they fill.
        row_length: The tokens of a row.
        tokens: The tokens in rows that come from documents.
        split: Documents that are longer than a row, and are in pieces.
        dropped: Documents that are longer than a row, and are left out.
        empty: Documents without a token, which are left out.
        most_pieces: The most documents, or pieces of some, in a row.
    """

    documents: int
    rows: int
    row_length: int
    tokens: int
    split: int
    dropped: int
    empty: int
    most_pieces: int

    @property
    def waste(self) -> float:
        """The share of all places in rows that is padding."""
        places = self.rows * self.row_length
        return 1 - self.tokens / places if places else 0.0

    def __str__(self) -> str:
        parts = [
            f"{self.documents:,} documents in {self.rows:,} rows of {self.row_length:,}",
            f"{self.waste:.1%} of the places are padding",
            f"{self.split:,} longer documents are split" if self.split else "",
            f"{self.dropped:,} longer documents are left out" if self.dropped else "",
            f"{self.empty:,} documents are empty" if self.empty else "",
        ]
        return "; ".join(part for part in parts if part)


class Pieces(NamedTuple):
    """Documents as they go into rows: each is one piece, or several where it is too long.

    Attributes:
        document: The number of the document that each piece is of.
        start: The place in it at which the piece begins.
        length: The tokens of the piece.
        split: How many documents are in several pieces.
        dropped: How many are too long and left out.
        empty: How many have no token.
    """

    document: NDArray[np.int64]
    start: NDArray[np.int64]
    length: NDArray[np.int64]
    split: int
    dropped: int
    empty: int


def cut(lengths: Sequence[int] | NDArray[Any], row_length: int, long: str, *, number: int = 0) -> Pieces:
    """Return the pieces of documents of these lengths, of which the first one is called `number` in an error.

    >>> pieces = cut([3, 9, 0], row_length=4, long="split")
    >>> pieces.document.tolist(), pieces.start.tolist(), pieces.length.tolist()
    ([0, 1, 1, 1], [0, 0, 4, 8], [3, 4, 4, 1])

    Raises:
        DataError: A document is too long, and that is to be refused.
    """
    counts = np.asarray(lengths, dtype=np.int64)
    too_long = counts > row_length
    if long == "refuse" and too_long.any():
        first = int(too_long.argmax())
        raise DataError(
            f"document {number + first} has {counts[first]:,} tokens, more than row_length={row_length}; take longer "
            "rows, or split such documents with long='split', or leave them out with long='drop'"
        )
    kept = np.where(too_long, 0, counts) if long == "drop" else counts
    parts = -(-kept // row_length)
    document = np.repeat(np.arange(len(counts)), parts)
    # The first piece of each document, counted over all pieces.
    firsts = np.cumsum(parts) - parts
    start = (np.arange(len(document)) - firsts[document]) * row_length
    length = np.minimum(kept[document] - start, row_length)
    long_ones, empty = int(too_long.sum()), int((counts == 0).sum())
    split, dropped = (0, long_ones) if long == "drop" else (long_ones, 0)
    return Pieces(document, start, length, split, dropped, empty)


def best_fit(lengths: Sequence[int], row_length: int) -> list[list[int]]:
    """Return which of the pieces share a row: the longest first, each where it leaves the least room.

    Rows stand in the order of their first pieces, and so do the pieces in a row.

    >>> best_fit([3, 6, 5, 4, 2], row_length=8)
    [[0, 2], [1, 4], [3]]
    """
    room: list[tuple[int, int]] = []
    rows: list[list[int]] = []
    for piece in sorted(range(len(lengths)), key=lambda one: (-lengths[one], one)):
        place = bisect_left(room, (lengths[piece], -1))
        if place == len(room):
            free, row = row_length, len(rows)
            rows.append([])
        else:
            free, row = room.pop(place)
        rows[row].append(piece)
        if free > lengths[piece]:
            insort(room, (free - lengths[piece], row))
    return sorted((sorted(row) for row in rows), key=lambda row: row[0])


class RowWriter:
    """Writes pieces of documents into the places of rows.

    Args:
        row_length: The places of a row.
        fields: What the parts of a row are called.
        padding: The token of places that are left over.
    """

    def __init__(self, row_length: int, fields: PackedFields, padding: int) -> None:
        self.row_length, self.fields, self.padding = row_length, fields, padding

    def write(self, rows: Sequence[Sequence[Any]]) -> dict[str, Tensor]:
        """Return a batch with these rows, each of them the pieces that stand in it."""
        shape = (len(rows), self.row_length)
        tokens = np.full(shape, self.padding, dtype=np.int64)
        targets = np.full(shape, IGNORED, dtype=np.int64)
        positions = np.empty(shape, dtype=np.int64)
        for row, pieces in enumerate(rows):
            place = 0
            for piece in pieces:
                end = place + len(piece)
                tokens[row, place:end] = piece
                if self.fields.next_token:
                    targets[row, place : end - 1] = tokens[row, place + 1 : end]
                else:
                    # The label of a first token would be predicted from the document before it.
                    targets[row, place + 1 : end] = tokens[row, place + 1 : end]
                positions[row, place:end] = np.arange(end - place)
                place = end
            # What is left over is a document of its own, whose targets count nothing.
            positions[row, place:] = np.arange(self.row_length - place)
        found = {self.fields.tokens: tokens, self.fields.targets: targets, self.fields.positions: positions}
        return {name: torch.from_numpy(array) for name, array in found.items()}


class PackedDocuments(IndexedSource, HasRows):
    """A data set of rows of one length, filled with documents that can be asked for by their number.

    Which documents share a row is decided when the data set is made, from their lengths alone: the same lengths make
    the same rows. A row is then a sample like any other: rows are shuffled, shared out to processes and workers, and
    found again by a run that resumes, as the samples of every data set are.

    Args:
        documents: A sequence of documents, each a row of tokens: lists, arrays or tensors. One with `lengths`, as token
            bins have, is not read for them.
        row_length: The tokens of a row: the context of the model.
        fields: What the parts of a row are called.
        long: What is done with a document that is longer than a row: "split" it into pieces that know nothing of each
            other, "drop" it, or "refuse" it with an error.
        buffer: How many pieces are looked at together; more of them leave less padding.
        padding: The token of places that are left over.
        seed: Mixes the documents before rows are made of them, so that neighbours do not share one; None keeps them in
            their order. Rows are shuffled by the trainer in any case.

    Attributes:
        report: What came of packing.
        max_documents: The most documents in a row, with what is left over as one more.
    """

    def __init__(
        self,
        documents: Sequence[Any],
        row_length: int,
        *,
        fields: PackedFields = FOR_TRANSFORMERS,
        long: str = "split",
        buffer: int = BUFFER,
        padding: int = 0,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        _check(row_length, long, buffer)
        self.documents, self.row_length, self.seed = documents, row_length, seed
        self._writer = RowWriter(row_length, fields, padding)
        counts = _lengths_of(documents)
        order = np.arange(len(counts)) if seed is None else np.random.default_rng(seed).permutation(len(counts))
        pieces = cut(counts[order], row_length, long)
        places, ends = _plan(pieces, row_length, buffer)
        self._document = order[pieces.document[places]]
        self._start, self._length, self._ends = pieces.start[places], pieces.length[places], ends
        most = int(np.diff(ends, prepend=0).max(initial=0))
        tokens = int(pieces.length.sum())
        self.report = PackingReport(
            len(counts), len(ends), row_length, tokens, pieces.split, pieces.dropped, pieces.empty, most
        )
        if not len(ends):
            raise DataError(f"no row can be made of {self.report}")
        self.max_documents = most + 1
        logger.log(logging.WARNING if pieces.dropped else logging.INFO, "%s", self.report)

    def __len__(self) -> int:
        return len(self._ends)

    def read(self, indices: Sequence[int]) -> list[dict[str, Tensor]]:
        """Return the rows at `indices`."""
        batches = (self._writer.write([self._pieces(int(row))]) for row in indices)
        return [{name: part[0] for name, part in batch.items()} for batch in batches]

    def fingerprint(self) -> Mapping[str, Any]:
        """Return what came of packing, the checksum of the pieces, and what the documents are known by."""
        pieces = zlib.crc32(np.concatenate([self._document, self._start, self._length]).tobytes())
        own = getattr(self.documents, "fingerprint", None)
        return {"packing": str(self.report), "pieces": f"{pieces:08x}", **(own() if callable(own) else {})}

    def rows(self) -> "PackedRows":
        """Return what makes batches of it."""
        return PackedRows(self)

    def batch(self, index: Tensor) -> dict[str, Tensor]:
        """Return the rows at `index`, as a batch."""
        return self._writer.write([self._pieces(row) for row in index.tolist()])

    def documents_of(self, row: int) -> list[int]:
        """Return the numbers of the documents in a row."""
        return [int(one) for one in self._document[self._span(row)]]

    def _span(self, row: int) -> slice:
        return slice(int(self._ends[row - 1]) if row else 0, int(self._ends[row]))

    def _pieces(self, row: int) -> list[Any]:
        span = self._span(row)
        parts = zip(*(part[span].tolist() for part in (self._document, self._start, self._length)), strict=True)
        return [self.documents[document][start : start + length] for document, start, length in parts]


class PackedRows:
    """Makes batches of packed rows.

    Args:
        packed: The data set.
    """

    def __init__(self, packed: PackedDocuments) -> None:
        self._packed = packed
        self.device = torch.device("cpu")

    def __call__(self, index: Tensor) -> dict[str, Tensor]:
        """Return the rows at `index`."""
        return self._packed.batch(index)


def _lengths_of(documents: Any) -> NDArray[np.int64]:
    known = getattr(documents, "lengths", None)
    known = known() if callable(known) else known
    if known is None or len(known) != len(documents):
        # They may be the lengths of something else: of the sources of a mixture.
        known = [len(documents[number]) for number in range(len(documents))]
    return np.asarray(known, dtype=np.int64)


def _check(row_length: int, long: str, buffer: int) -> None:
    require_positive("row_length", row_length)
    require_positive("buffer", buffer)
    check_choice("long", long, LONG)


def _plan(pieces: Pieces, row_length: int, buffer: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the pieces in the order in which rows hold them, and where each row ends."""
    places: list[int] = []
    ends: list[int] = []
    last = int(pieces.document[-1]) if len(pieces.document) else -1
    # The pieces of one document stay in one buffer.
    bounds = np.searchsorted(pieces.document, np.arange(0, last + buffer + 1, buffer)).tolist()
    for begin, end in pairwise(bounds):
        for row in best_fit(pieces.length[begin:end].tolist(), row_length):
            places += [begin + piece for piece in row]
            ends.append(len(places))
    return np.asarray(places, dtype=np.int64), np.asarray(ends, dtype=np.int64)


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
        _check(row_length, long, buffer)
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
