"""What a door shows of a run on its page: pictures and tables in the folder `panels` of the run."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from treadle.checkpoint.durable import replace_text
from treadle.run_reading import PANELS


def write_picture(run: Path, name: str, svg: str) -> Path:
    """Put a picture onto the page of a run.

    Args:
        run: The folder of the run.
        name: What it is called: the title on the page, with underscores for spaces.
        svg: The text of an SVG file that needs nothing else.

    Returns:
        The file.
    """
    return _write(run, f"{name}.svg", svg)


def write_table(run: Path, name: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Path:
    """Put a table onto the page of a run.

    Args:
        run: The folder of the run.
        name: What it is called: the title on the page, with underscores for spaces.
        columns: The heads of its columns.
        rows: Plain values, row by row.

    Returns:
        The file.
    """
    content = {"columns": list(columns), "rows": [list(row) for row in rows]}
    return _write(run, f"{name}.json", json.dumps(content, default=str))


def _write(run: Path, name: str, text: str) -> Path:
    path = run / PANELS / name
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, text)
    return path
