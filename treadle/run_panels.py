"""What a door has to show of a run, put where the page of the run finds it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from treadle.checkpoint.durable import replace_text
from treadle.errors import CheckpointError
from treadle.run_reading import PANELS


def write_table(folder: Path, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Path:
    """Write a table that the page of a folder shows, and return its file.

    Args:
        folder: The folder of a run, or of several runs together.
        title: What is written over the table.
        columns: Its heads.
        rows: Its cells, row by row.

    Raises:
        CheckpointError: The disk does not take it.
    """
    path = folder / PANELS / f"{title.replace(' ', '_')}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, json.dumps({"columns": list(columns), "rows": [list(row) for row in rows]}))
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {error}") from error
    return path
