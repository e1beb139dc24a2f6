"""What a door shows of a run on its page: pictures and tables in the folder `panels` of the run."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from treadle.errors import CheckpointError
from treadle.files.atomic_io import replace_text
from treadle.runs.reader import PANELS


def write_picture(folder: Path, title: str, svg: str) -> Path:
    """Write a picture that the page of a folder shows, and return its file.

    Args:
        folder: The folder of a run, or of several runs together.
        title: What is written over the picture.
        svg: The text of an SVG file that needs nothing else.

    Raises:
        CheckpointError: The disk does not take it.
    """
    return _write(folder, f"{title}.svg", svg)


def write_table(folder: Path, title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Path:
    """Write a table that the page of a folder shows, and return its file.

    Args:
        folder: The folder of a run, or of several runs together.
        title: What is written over the table.
        columns: Its heads.
        rows: Plain values, row by row.

    Raises:
        CheckpointError: The disk does not take it.
    """
    content = {"columns": list(columns), "rows": [list(row) for row in rows]}
    return _write(folder, f"{title}.json", json.dumps(content, default=str))


def _write(folder: Path, name: str, text: str) -> Path:
    path = folder / PANELS / name.replace(" ", "_")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, text)
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {error}") from error
    return path
