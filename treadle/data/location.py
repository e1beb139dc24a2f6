"""Where the data sets of a machine lie."""

import os
from pathlib import Path

from treadle.errors import DataError, did_you_mean

VARIABLE = "TREADLE_DATA"
"""The environment variable that names the folder in which each data set has a folder of its own."""


def data_folder(name: str) -> Path:
    """Return the folder of the data set `name`: the one so called in the folder that TREADLE_DATA names.

    Args:
        name: The name of the data set's folder, such as `tinyshakespeare`.

    Raises:
        DataError: The variable is not set, or there is no such folder.
    """
    root = os.environ.get(VARIABLE, "")
    if not root:
        raise DataError(
            f"the data set {name!r} is looked for in the folder that the environment variable {VARIABLE} names, which "
            f"is not set; set it to the folder that holds {name}/"
        )
    folder = Path(root).expanduser() / name
    if folder.is_dir():
        return folder
    if not folder.parent.is_dir():
        raise DataError(f"{VARIABLE}={root} is no folder; set it to the one that holds {name}/")
    present = sorted(entry.name for entry in folder.parent.iterdir() if entry.is_dir())
    raise DataError(f"{VARIABLE}={root} has no folder {name!r}{did_you_mean(name, present) or f'; it has {present}'}")
