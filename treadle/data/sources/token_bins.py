"""Token bins: tokens of documents in memory-mapped files, and the writer of these files.

A bin is two files side by side, all numbers little-endian:

`NAME.bin` holds nothing but tokens, one document after the other, as `uint16` or `uint32`.

`NAME.idx` says what they are, and is written last: a bin without it is not complete.

| bytes | what |
|---|---|
| 0-7 | `TRDLTOKS` |
| 8-11 | version of the format, 1 |
| 12-15 | length H of the header, a multiple of 8 |
| 16-19 | CRC-32 of the header |
| 20-23 | CRC-32 of the offsets |
| 24 to 24+H | the header: a JSON object, filled up with spaces |
| then | `documents + 1` offsets as `uint64`, in tokens: document i is `tokens[offsets[i]:offsets[i + 1]]` |

The header has `dtype`, `tokens`, `documents`, `crc32` (of `NAME.bin`) and `meta`, what the writer was told besides,
such as the name of the tokenizer.
"""

import json
import struct
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
import torch
from torch import Tensor

from treadle.data.batch import Batch
from treadle.data.collate import HasRows
from treadle.data.sources.records import by_name
from treadle.data.sources.source import IndexedSource
from treadle.errors import ConfigError, DataError, check_choice, require_positive
from treadle.files.atomic_io import CHUNK, checksum, sync_file

MAGIC, VERSION = b"TRDLTOKS", 1
FRONT = struct.Struct("<8sIIII")
TYPES: dict[str, Any] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
"""What tokens may be stored as."""


@dataclass(frozen=True)
class TokenBinHeader:
    """What the index of a bin says of it.

    Attributes:
        dtype: How tokens are stored: "uint16" or "uint32".
        tokens: How many there are.
        documents: How many documents they make.
        crc32: The checksum of the tokens, eight hexadecimal digits.
        meta: What the writer was told besides.
    """

    dtype: str
    tokens: int
    documents: int
    crc32: str
    meta: Mapping[str, Any]


# Writing --------------------------------------------------------------------------------------------------------


class TokenBinWriter:
    """Writes a bin, document by document.

    The files get their names when the block around it ends well: a process that is killed, or that fails, leaves only
    `NAME.bin.part`, which the next writer of that name begins anew.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     with TokenBinWriter(f"{folder}/books") as writer:
    ...         writer.add([5, 6, 7])
    ...         writer.add([8, 9])
    ...     TokenBins(f"{folder}/books")[1]
    tensor([8, 9])

    Args:
        path: The files without their endings: "books" makes `books.bin` and `books.idx`.
        dtype: How tokens are stored: "uint16" for vocabularies of up to 65,536 tokens, else "uint32".
        meta: Plain data to keep in the header.

    Attributes:
        tokens: How many were added.
    """

    def __init__(self, path: str | Path, *, dtype: str = "uint16", meta: Mapping[str, Any] | None = None) -> None:
        check_choice("dtype", dtype, TYPES)
        self.bin, self.index = bin_paths(path)
        self.dtype, self.meta = dtype, dict(meta or {})
        self.tokens = 0
        self._most = int(np.iinfo(TYPES[dtype]).max)
        self._offsets = [0]
        self._crc = 0
        self._part = self.bin.with_name(f"{self.bin.name}.part")
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        self.bin.parent.mkdir(parents=True, exist_ok=True)
        # A new bin of this name is complete when its index is there: the old one goes first.
        self.index.unlink(missing_ok=True)
        self._file = self._part.open("wb")
        return self

    def add(self, tokens: Any) -> None:
        """Add a document: a sequence, an array or a tensor of whole numbers.

        Raises:
            DataError: They are no tokens, or too large for the type.
        """
        assert self._file is not None, "use it in a with block"
        found = np.asarray(tokens)
        if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
            raise DataError(
                f"{self.bin}: document {len(self._offsets) - 1} is of shape {found.shape} and type {found.dtype}; give "
                "its tokens as a sequence of whole numbers"
            )
        if found.size and not 0 <= int(found.min()) <= int(found.max()) <= self._most:
            raise DataError(
                f"{self.bin}: document {len(self._offsets) - 1} has tokens from {found.min()} to {found.max()}, and "
                f"{self.dtype} holds 0 to {self._most}; use a larger dtype"
            )
        data = found.astype(TYPES[self.dtype]).tobytes()
        self._file.write(data)
        self._crc = zlib.crc32(data, self._crc)
        self.tokens += found.size
        self._offsets.append(self.tokens)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._file is not None
        self._file.close()
        if kind is not None:
            self._part.unlink(missing_ok=True)
            return
        sync_file(self._part)
        self._part.replace(self.bin)
        self._write_index()

    def _write_index(self) -> None:
        header = {
            "dtype": self.dtype,
            "tokens": self.tokens,
            "documents": len(self._offsets) - 1,
            "crc32": f"{self._crc:08x}",
            "meta": self.meta,
        }
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        offsets = np.asarray(self._offsets, dtype="<u8").tobytes()
        part = self.index.with_name(f"{self.index.name}.part")
        with part.open("wb") as file:
            file.write(FRONT.pack(MAGIC, VERSION, len(text), zlib.crc32(text), zlib.crc32(offsets)))
            file.write(text)
            file.write(offsets)
        sync_file(part)
        part.replace(self.index)
        sync_file(self.index.parent)


def write_token_bin(
    path: str | Path, documents: Iterable[Any], *, dtype: str = "uint16", meta: Mapping[str, Any] | None = None
) -> TokenBinHeader:
    """Write a bin of all `documents`, and return what its header says.

    Args:
        path: The files without their endings.
        documents: The tokens of each.
        dtype: How tokens are stored: "uint16" or "uint32".
        meta: Plain data to keep in the header.
    """
    with TokenBinWriter(path, dtype=dtype, meta=meta) as writer:
        for document in documents:
            writer.add(document)
    return TokenBin(path).header


# Reading --------------------------------------------------------------------------------------------------------


class TokenBin:
    """One bin: its header, where its documents begin, and its tokens, mapped from the file.

    Args:
        path: The bin, with or without an ending.

    Attributes:
        path: `NAME.bin`.
        header: What its index says.

    Raises:
        DataError: It is not complete, or damaged.
    """

    def __init__(self, path: str | Path) -> None:
        self.path, self.index = bin_paths(path)
        self.header, self._first = self._read_header()
        self._check_size()
        self._offsets: Any = None
        self._tokens: Any = None

    def _read_header(self) -> tuple[TokenBinHeader, int]:
        try:
            with self.index.open("rb") as file:
                front = file.read(FRONT.size)
                if len(front) < FRONT.size or front[:8] != MAGIC:
                    raise DataError(f"{self.index} is no index of a token bin; write the bin again")
                _, version, size, crc, self._offsets_crc = FRONT.unpack(front)
                if version != VERSION:
                    raise DataError(f"{self.index} has version {version} of the format, and this is version {VERSION}")
                text = file.read(min(size, CHUNK))
        except FileNotFoundError:
            raise DataError(
                f"{self.index} is not there: the bin is not complete, or is none; write it again, or check the path"
            ) from None
        if zlib.crc32(text) != crc:
            raise DataError(f"{self.index} is damaged: its header has another checksum; write the bin again")
        return TokenBinHeader(**json.loads(text)), FRONT.size + size

    def _check_size(self) -> None:
        header = self.header
        wanted = {
            self.path: header.tokens * TYPES[header.dtype].itemsize,
            self.index: self._first + 8 * (header.documents + 1),
        }
        for path, size in wanted.items():
            found = path.stat().st_size if path.exists() else 0
            if found != size:
                raise DataError(f"{path} has {found} bytes, and its index says {size}; write the bin again")

    @property
    def offsets(self) -> Any:
        """Where documents begin, and where the last one ends, in tokens."""
        if self._offsets is None:
            offsets: Any = np.memmap(self.index, dtype="<u8", mode="r", offset=self._first)
            if zlib.crc32(offsets) != self._offsets_crc:
                raise DataError(f"{self.index} is damaged: its offsets have another checksum; write the bin again")
            self._offsets = offsets.view("<i8")
        return self._offsets

    @property
    def tokens(self) -> Any:
        """All tokens."""
        if self._tokens is None:
            kind = TYPES[self.header.dtype]
            # An empty file cannot be mapped.
            empty = not self.header.tokens
            self._tokens = np.empty(0, dtype=kind) if empty else np.memmap(self.path, dtype=kind, mode="r")
        return self._tokens

    def document(self, number: int) -> Any:
        """Return the tokens of a document, as a view of the file."""
        return self.tokens[self.offsets[number] : self.offsets[number + 1]]

    def verify(self) -> None:
        """Read all of it, and compare the checksums.

        Raises:
            DataError: It is damaged.
        """
        assert self.offsets is not None
        found = checksum(self.path)
        if found != self.header.crc32:
            raise DataError(
                f"{self.path} is damaged: its checksum is {found}, and its index says {self.header.crc32}; "
                "write the bin again"
            )

    def __getstate__(self) -> dict[str, Any]:
        # A mapped file would be pickled with all that is in it.
        return {**vars(self), "_offsets": None, "_tokens": None}


class TokenBins(IndexedSource, HasRows):
    """Samples from token bins, mapped from their files: nothing is read but what is drawn.

    Args:
        path: A bin, a folder of bins, or a list of these. The bins of a folder are taken in the order of their names.
        length: How many tokens a sample has: samples are neighbouring windows of each bin, across its documents, and
            the targets are the tokens that follow. None makes every document a sample.
        keys: The names of inputs and targets, which makes a sample a dict; None makes it a pair.

    Attributes:
        bins: The bins.

    Raises:
        DataError: There is none, one is not complete or damaged, or they hold no sample.
    """

    def __init__(
        self,
        path: str | Path | Sequence[str | Path],
        length: int | None = None,
        *,
        keys: tuple[str, str] | None = None,
    ) -> None:
        super().__init__()
        if length is not None:
            require_positive("TokenBins: length", length)
        elif keys is not None:
            raise ConfigError(f"TokenBins: keys={keys} names inputs and targets, and documents have none; give length=")
        self.bins = [TokenBin(one) for one in found_bins(path)]
        self.window, self.keys = length, keys
        counts = [self._count(one) for one in self.bins]
        self._ends = np.cumsum(counts)
        self._starts = [0, *self._ends.tolist()]
        if not len(self):
            tokens = sum(one.header.tokens for one in self.bins)
            raise DataError(f"TokenBins({str(path)!r}, length={length}): {tokens} tokens make no sample")

    def _count(self, one: TokenBin) -> int:
        return one.header.documents if self.window is None else max(0, (one.header.tokens - 1) // self.window)

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def tokens(self) -> int:
        """How many tokens there are in all bins."""
        return sum(one.header.tokens for one in self.bins)

    def lengths(self) -> Any:
        """Return the number of tokens of each document, in the order of their indices where documents are samples."""
        return np.concatenate([np.diff(one.offsets) for one in self.bins])

    def read(self, indices: Sequence[int]) -> list[Any]:
        """Return the samples at `indices`."""
        if self.window is None:
            found = (self._find(int(index)) for index in indices)
            return [torch.from_numpy(one.document(number).astype(np.int64)) for one, number in found]
        rows = self._windows(indices)
        pairs = list(zip(rows[:, :-1], rows[:, 1:], strict=True))
        return pairs if self.keys is None else [dict(zip(self.keys, pair, strict=True)) for pair in pairs]

    def _find(self, index: int) -> tuple[TokenBin, int]:
        place = bisect_right(self._starts, index) - 1
        return self.bins[place], index - self._starts[place]

    def _windows(self, indices: Iterable[int]) -> Tensor:
        """Return a row for each index: the tokens of its window, and the one behind it."""
        assert self.window is not None
        wanted = list(indices)
        rows = np.empty((len(wanted), self.window + 1), dtype=np.int64)
        for row, index in zip(rows, wanted, strict=True):
            one, number = self._find(index)
            first = number * self.window
            row[:] = one.tokens[first : first + self.window + 1]
        return torch.from_numpy(rows)

    def rows(self) -> Any:
        """Return what makes batches of windows; documents, of unequal lengths, are collated."""
        return None if self.window is None else TokenRows(self)

    def fingerprint(self) -> Mapping[str, Any]:
        """Return the checksum and the number of tokens of each bin."""
        marks = [f"{one.header.tokens} tokens, {one.header.crc32}" for one in self.bins]
        return by_name([one.path for one in self.bins], marks)

    def verify(self) -> None:
        """Read all bins, and compare the checksums.

        Raises:
            DataError: One is damaged.
        """
        for one in self.bins:
            one.verify()


class TokenRows:
    """Makes batches of windows without a tensor for each of them.

    Args:
        bins: The source.
    """

    def __init__(self, bins: TokenBins) -> None:
        self.bins = bins
        self.device = torch.device("cpu")

    def __call__(self, index: Tensor) -> Batch:
        """Return the batch of the samples at `index`: what collating them would give."""
        rows = self.bins._windows(index.tolist())
        columns = [rows[:, :-1].contiguous(), rows[:, 1:].contiguous()]
        return columns if self.bins.keys is None else dict(zip(self.bins.keys, columns, strict=True))


def bin_paths(path: str | Path) -> tuple[Path, Path]:
    """Return the paths of the tokens and of the index of a bin.

    >>> [one.name for one in bin_paths("books.v2")], [one.name for one in bin_paths("books.idx")]
    (['books.v2.bin', 'books.v2.idx'], ['books.bin', 'books.idx'])
    """
    found = Path(path)
    stem = found.name.removesuffix(".bin").removesuffix(".idx")
    return found.with_name(f"{stem}.bin"), found.with_name(f"{stem}.idx")


def found_bins(path: str | Path | Sequence[str | Path]) -> list[Path]:
    """Return the bins that a path names, or several paths: those of a folder in the order of their names.

    Raises:
        DataError: A folder has none, or there is no path.
    """
    if not isinstance(path, (str, Path)):
        found = [one for part in path for one in found_bins(part)]
        if not found:
            raise DataError("TokenBins([]): no bin was named; give the path of a bin or of a folder of bins")
        return found
    if not Path(path).is_dir():
        return [Path(path)]
    bins = sorted(Path(path).glob("*.idx"))
    if not bins:
        raise DataError(f"{path} has no token bin, a file that ends in .idx; make some with TokenBinWriter")
    return bins
