"""Tables of recommendations: what was found, for readers and for files."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from treadle.errors import ConfigError, DataError, did_you_mean
from treadle.files.atomic_io import replace_file
from treadle.recsys.optional import pyarrow
from treadle.runs.html_table import html_table

FORMATS = (".csv", ".tsv", ".parquet", ".arrow")
SHOWN = 20
"""How many rows are printed."""


class Recommended(NamedTuple):
    """An item in a list: for whom, at which place from 1, which item, and its score."""

    query: str
    rank: int
    item: str
    score: float


@dataclass(frozen=True)
class Recommendations:
    """The best items for each of some users, or those most like each of some items.

    Attributes:
        of: What the lists are for: the name of the field with users, or with items.
        queries: For whom, or for which item, each list is.
        items: The items, best first, `[queries, k]`; empty text where there are no more.
        scores: Their scores; -inf where there are no more.
        cold: Whether the model knows nothing of a user, so that the list is what is popular.
        because: For each item of each list, where that was asked for, the items of the history that are most like it.
    """

    of: str
    queries: list[str]
    items: np.ndarray[Any, Any]
    scores: np.ndarray[Any, Any]
    cold: np.ndarray[Any, Any]
    because: list[list[list[str]]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.queries)

    def __getitem__(self, query: Any) -> list[str]:
        """Return the items for a user, best first, by the user's token."""
        name = str(query)
        if name not in self.queries:
            raise DataError(f"there is no list for {name!r}{did_you_mean(name, self.queries)}")
        return [item for item in self.items[self.queries.index(name)].tolist() if item]

    def __iter__(self) -> Iterator[Recommended]:
        for query, items, scores in zip(self.queries, self.items.tolist(), self.scores.tolist(), strict=True):
            for rank, (item, score) in enumerate(zip(items, scores, strict=True), start=1):
                if item:
                    yield Recommended(query, rank, item, score)

    def with_others(self, items: list[str], scores: np.ndarray[Any, Any]) -> "Recommendations":
        """Return the best of these items and of others.

        Args:
            items: The others.
            scores: Their scores, `[queries, others]`; -inf for those that are not to be in a list.
        """
        every = np.concatenate([self.scores, scores], axis=1)
        names = np.concatenate([self.items, np.broadcast_to(np.array(items, object), scores.shape)], axis=1)
        best = np.argsort(-every, axis=1, kind="stable")[:, : self.items.shape[1]]
        taken = np.take_along_axis(every, best, axis=1)
        names = np.where(taken == -np.inf, "", np.take_along_axis(names, best, axis=1))
        reasons = [
            [past[place] if place < len(past) else [] for place in places]
            for past, places in zip(self.because, best.tolist(), strict=bool(self.because))
        ]
        return replace(self, items=names, scores=taken, because=reasons)

    def to_arrow(self) -> Any:
        """Return a row for each item of each list, as an Arrow table."""
        rows = list(self)
        columns = {
            self.of: [row.query for row in rows],
            "rank": [row.rank for row in rows],
            "item": [row.item for row in rows],
            "score": np.array([row.score for row in rows], np.float32),
        }
        return pyarrow().table(columns)

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write a row for each item of each list to a `.csv`, `.tsv`, `.parquet` or `.arrow` file; return it."""
        return write_table(path, self.to_arrow())

    def _repr_html_(self) -> str:
        """Show the lists as a table in a notebook."""
        lists = list(zip(self.queries, self.items.tolist(), self.cold.tolist(), strict=True))[:SHOWN]
        rows = [[f"{query}{' (popular)' if cold else ''}", *items] for query, items, cold in lists]
        places = range(1, self.items.shape[1] + 1)
        more = len(self) - SHOWN
        return html_table([self.of, *places], rows, f"the first {SHOWN}; there are {more} more" if more > 0 else "")

    def __str__(self) -> str:
        lines = []
        for query, cold in list(zip(self.queries, self.cold.tolist(), strict=True))[:SHOWN]:
            lines.append(f"{query}{' (popular)' if cold else ''}: {', '.join(self[query]) or 'nothing is left'}")
        more = len(self) - SHOWN
        return "\n".join([*lines, *([f"and {more} more"] if more > 0 else [])])


def write_table(path: str | os.PathLike[str], table: Any) -> Path:
    """Write an Arrow table in the format that the suffix of the file says; the file is complete or not there.

    Raises:
        ConfigError: The suffix is none that can be written.
        DataError: The file cannot be written.
    """
    target = Path(path)
    check_format(target)
    arrow = pyarrow()

    def write(temporary: Path) -> None:
        if target.suffix == ".parquet":
            arrow.parquet.write_table(table, temporary)
            return
        if target.suffix == ".arrow":
            arrow.feather.write_feather(table, str(temporary), compression="uncompressed")
            return
        options = arrow.csv.WriteOptions(delimiter="\t" if target.suffix == ".tsv" else ",")
        arrow.csv.write_csv(table, temporary, options)

    return _put(target, write)


def write_arrays(path: str | os.PathLike[str], **arrays: np.ndarray[Any, Any]) -> Path:
    """Write arrays to a `.npz` file, which `numpy.load` reads without pickles; it is complete or not there.

    Raises:
        DataError: The file cannot be written.
    """

    def write(temporary: Path) -> None:
        with open(temporary, "wb") as file:
            np.savez(file, allow_pickle=False, **arrays)

    return _put(Path(path), write)


def _put(target: Path, write: Callable[[Path], None]) -> Path:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        replace_file(target, write)
    except OSError as error:
        raise DataError(f"cannot write {target}: {error}") from error
    return target


def check_format(path: str | os.PathLike[str]) -> None:
    """Refuse a file whose suffix is none that can be written.

    Raises:
        ConfigError: It is none.
    """
    suffix = Path(path).suffix
    if suffix not in FORMATS:
        raise ConfigError(f"{os.fspath(path)}: {suffix or 'no suffix'} is no format of a table; use one of {FORMATS}")
