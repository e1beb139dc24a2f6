"""The page of a benchmark of recommenders: models by metrics, time and memory, and what single users get."""

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from treadle.errors import CheckpointError
from treadle.files.atomic_io import replace_text
from treadle.tools.report.page import asset, embedded, filled

NAME = "leaderboard.html"


def render_leaderboard(summary: Mapping[str, Any]) -> str:
    """Return the page as HTML that needs nothing else: what the data says is text, and never part of the page.

    Args:
        summary: What it shows, as `treadle.recsys.bench.summary.summarize` returns it.
    """
    return filled(
        asset("leaderboard.html"),
        title=escape(str(summary["title"])),
        style=asset("leaderboard.css"),
        data=embedded(dict(summary)),
        program=asset("leaderboard.js"),
    )


def write_leaderboard(summary: Mapping[str, Any], output: Path) -> Path:
    """Write the page, and return its file.

    Raises:
        CheckpointError: The file cannot be written.
    """
    try:
        replace_text(output, render_leaderboard(summary))
    except OSError as error:
        raise CheckpointError(f"cannot write the page {output}: {error}") from error
    return output
