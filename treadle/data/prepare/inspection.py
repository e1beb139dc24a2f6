"""What token bins hold: how much, documents of which lengths, how many are there twice, and some of them as text."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from treadle.data.sources.token_bins import TokenBin, found_bins

PERCENTILES = (1, 25, 50, 75, 99)


@dataclass(frozen=True)
class Inspection:
    """What was found in token bins.

    Attributes:
        bins: How many there are.
        size: The bytes of their files.
        documents: How many documents they hold.
        tokens: How many tokens.
        dtypes: How tokens are stored.
        tokenizers: What the tokenizers are called that made them, as far as that was written down.
        shortest: The tokens of the shortest document.
        longest: Those of the longest one.
        mean: The mean number of tokens.
        percentiles: How many tokens so many percent of the documents have at most.
        histogram: Documents by length: the least and the most tokens of each class, and how many documents are in it.
        duplicates: Documents that are the same as an earlier one; None if nobody looked.
    """

    bins: int
    size: int
    documents: int
    tokens: int
    dtypes: tuple[str, ...]
    tokenizers: tuple[str, ...]
    shortest: int
    longest: int
    mean: float
    percentiles: dict[int, int]
    histogram: tuple[tuple[int, int, int], ...]
    duplicates: int | None


def inspect_bins(
    path: str | Path | Sequence[str | Path],
    *,
    duplicates: bool = True,
    told: Callable[[int, int], object] | None = None,
) -> Inspection:
    """Look at token bins.

    Args:
        path: A bin, a folder of bins, or a list of these.
        duplicates: Whether to look for documents that are there twice, which reads all of them.
        told: Is called with how many documents were looked at since the last call, and how many there are.

    Raises:
        DataError: There is no bin, or one is not complete or damaged.
    """
    bins = [TokenBin(one) for one in found_bins(path)]
    lengths = np.concatenate([np.diff(one.offsets) for one in bins])
    some = lengths if len(lengths) else np.zeros(1, dtype=np.int64)
    percentiles = np.percentile(some, PERCENTILES, method="lower")
    named = {str(one.header.meta["tokenizer"]) for one in bins if "tokenizer" in one.header.meta}
    return Inspection(
        bins=len(bins),
        size=sum(file.stat().st_size for one in bins for file in (one.path, one.index)),
        documents=len(lengths),
        tokens=int(lengths.sum()),
        dtypes=tuple(sorted({one.header.dtype for one in bins})),
        tokenizers=tuple(sorted(named)),
        shortest=int(some.min()),
        longest=int(some.max()),
        mean=float(some.mean()),
        percentiles=dict(zip(PERCENTILES, map(int, percentiles), strict=True)),
        histogram=_histogram(lengths),
        duplicates=_count_duplicates(bins, told) if duplicates else None,
    )


def _histogram(lengths: Any) -> tuple[tuple[int, int, int], ...]:
    """Return classes of lengths that double, from the first to the last that has a document."""
    if not len(lengths):
        return ()
    # 0 and 1 for themselves, then 2 to 3, 4 to 7 ...
    classes = np.where(lengths > 0, np.floor(np.log2(np.maximum(lengths, 1))).astype(int) + 1, 0)
    counts = np.bincount(classes)
    first = int(np.flatnonzero(counts)[0])
    bounds = [(0, 0), *((1 << one, (2 << one) - 1) for one in range(len(counts) - 1))]
    return tuple((*bounds[one], int(counts[one])) for one in range(first, len(counts)))


def _count_duplicates(bins: Sequence[TokenBin], told: Callable[[int, int], object] | None) -> int:
    """Return how many documents are the same as an earlier one: 16 bytes are kept of each that is not."""
    total = sum(one.header.documents for one in bins)
    seen: set[bytes] = set()
    for one in bins:
        # By the numbers and not by the bytes: a bin may store the same tokens in another type.
        for number in range(one.header.documents):
            seen.add(hashlib.blake2b(one.document(number).astype("<u4").tobytes(), digest_size=16).digest())
        if told is not None:
            told(one.header.documents, total)
    return total - len(seen)


def sample_documents(path: str | Path | Sequence[str | Path], count: int, seed: int) -> list[tuple[str, int, Any]]:
    """Return the bin, the number in it and the tokens of some documents, drawn by a seed."""
    bins = [TokenBin(one) for one in found_bins(path)]
    ends = np.cumsum([one.header.documents for one in bins])
    drawn = np.random.default_rng(seed).permutation(int(ends[-1]))[:count]
    found = []
    for number in sorted(drawn.tolist()):
        place = int(np.searchsorted(ends, number, side="right"))
        inside = number - (int(ends[place - 1]) if place else 0)
        found.append((bins[place].path.name, inside, bins[place].document(inside)))
    return found
