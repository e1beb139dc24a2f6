"""Files of interactions without a header, as many papers publish them."""

import logging
from pathlib import Path
from typing import Any

import numpy as np

from treadle.errors import ConfigError, DataError, did_you_mean
from treadle.recsys.optional import pyarrow

logger = logging.getLogger(__name__)
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


def read_interactions(
    path: Path, layout: str, *, user: str, item: str, time: str | None, on_bad_line: str = "error"
) -> Any:
    """Return the interactions in a file of lines `user item item ...` ("lists") or `user item` ("pairs").

    Args:
        path: The file; compressed if its name says so.
        layout: "lists" or "pairs".
        user: What to call the users' column.
        item: What to call the items' column.
        time: What to call a column with the place of an interaction in the file, for layouts in the order of time;
            None for no such column.
        on_bad_line: Whether a line that is too short is an "error", or left out: "skip".

    Returns:
        An Arrow table.

    Raises:
        DataError: The file cannot be read, or a line is too short.
    """
    arrow = pyarrow()
    words, lengths = _words(path)
    starts = np.cumsum(lengths) - lengths
    if layout == "pairs":
        short = np.flatnonzero(lengths == 1) + 1
        if len(short) and on_bad_line == "error":
            raise DataError(
                f"line {short[0]} of {path} has fewer than two words; write `user item`, or set on_bad_line to 'skip' "
                "to leave such lines out"
            )
        if len(short):
            logger.warning("%d lines of %s have fewer than two words and are left out: %s", len(short), path, short[:5])
        counts = (lengths > 1).astype(np.int64)
    else:
        counts = np.maximum(lengths - 1, 0)
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
            # Empty lines, which do not count, are kept so that others have their numbers.
            csv.ParseOptions(delimiter="\x1f", quote_char=False, ignore_empty_lines=False),
            csv.ConvertOptions(column_types={"line": arrow.string()}),
        )["line"]
    except (arrow.ArrowInvalid, OSError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    trimmed = arrow.compute.utf8_trim_whitespace(lines)
    split = arrow.compute.utf8_split_whitespace(trimmed)
    lengths: np.ndarray[Any, Any] = arrow.compute.list_value_length(split).to_numpy().astype(np.int64)
    # Arrow takes an empty line for one empty word.
    lengths[arrow.compute.equal(trimmed, "").to_numpy()] = 0
    words = arrow.compute.list_flatten(split)
    words = words.filter(arrow.compute.not_equal(words, ""))
    return words.combine_chunks().dictionary_encode(), lengths


def _within(counts: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return, for each element of several runs, its place in its own run."""
    ends = np.cumsum(counts)
    places: np.ndarray[Any, Any] = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - counts, counts)
    return places
