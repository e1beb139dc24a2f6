"""Small functions that files written for RecBole import, and that need nothing else of Treadle's."""

import os
from datetime import datetime
from pathlib import Path


def set_color(log: object, color: str, highlight: bool = True) -> str:
    """Return a text as it is: whoever shows it decides about colours.

    >>> set_color("epoch 0", "green")
    'epoch 0'
    """
    return str(log)


def ensure_dir(dir_path: str | os.PathLike[str]) -> None:
    """Make a folder, unless it is there."""
    Path(dir_path).mkdir(parents=True, exist_ok=True)


def get_local_time() -> str:
    """Return the time as names of files have it, such as `Jan-31-2026_12-00-00`."""
    return datetime.now().strftime("%b-%d-%Y_%H-%M-%S")
