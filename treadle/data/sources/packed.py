"""Documents packed into rows of one length: what would be padding holds other documents."""

import logging
import zlib
from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from treadle.data.collate import HasRows
from treadle.data.sources.source import IndexedSource
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
        check_packing(row_length, long, buffer)
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


def check_packing(row_length: int, long: str, buffer: int) -> None:
    """Refuse arguments of packing that cannot be meant."""
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
