"""Files of interactions without a header, as many papers publish them."""

from pathlib import Path
from typing import Any

import numpy as np

from treadle.errors import ConfigError, DataError, did_you_mean
from treadle.recsys.optional import pyarrow

LAYOUTS = ("atomic", "lists", "pairs")


def check_layout(layout: Any) -> str:
    """Return the layout.

    Raises:
        ConfigError: There is none of that name.
    """
    if layout not in LAYOUTS:
        near = did_you_mean(str(layout), LAYOUTS) or f"; there are {list(LAYOUTS)}"
        raise ConfigError(f"inter_layout={layout!r} does not exist{near}")
    return str(layout)


def read_interactions(path: Path, layout: str, *, user: str, item: str, time: str | None) -> Any:
    """Return the interactions in a file of lines `user item item ...` ("lists") or `user item` ("pairs").

    Args:
        path: The file; compressed if its name says so.
        layout: "lists" or "pairs".
        user: What to call the users' column.
        item: What to call the items' column.
        time: What to call a column with the place of an interaction in the file, for layouts in the order of time;
            None for no such column.

    Returns:
        An Arrow table.

    Raises:
        DataError: The file cannot be read, or a line is too short.
    """
    arrow = pyarrow()
    words, lengths = _words(path)
    starts = np.cumsum(lengths) - lengths
    if layout == "pairs" and len(lengths) and lengths.min() < 2:
        raise DataError(f"line {int(np.argmin(lengths)) + 1} of {path} has fewer than two words; write `user item`")
    counts = np.ones_like(lengths) if layout == "pairs" else lengths - 1
    first = np.repeat(starts, counts)
    places = first + 1 + _within(counts)
    columns = {user: words.take(arrow.array(first)), item: words.take(arrow.array(places))}
    if time is not None:
        columns[time] = arrow.array(np.arange(len(first)))
    return arrow.table(columns)


def _words(path: Path) -> tuple[Any, np.ndarray[Any, Any]]:
    """Return all words of a file, and how many each line has."""
    arrow = pyarrow()
    csv = arrow.csv
    try:
        lines = csv.read_csv(
            str(path),
            csv.ReadOptions(column_names=["line"], block_size=1 << 24),
            csv.ParseOptions(delimiter="\x1f", quote_char=False),
            csv.ConvertOptions(column_types={"line": arrow.string()}),
        )["line"]
    except (arrow.ArrowInvalid, OSError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    split = arrow.compute.utf8_split_whitespace(arrow.compute.utf8_trim_whitespace(lines))
    lengths: np.ndarray[Any, Any] = arrow.compute.list_value_length(split).to_numpy().astype(np.int64)
    return arrow.compute.list_flatten(split).combine_chunks().dictionary_encode(), lengths


def _within(counts: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return, for each element of several runs, its place in its own run."""
    ends = np.cumsum(counts)
    places: np.ndarray[Any, Any] = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - counts, counts)
    return places
