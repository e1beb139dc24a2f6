"""A folder into which nothing is written while a block runs, whoever tries."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from treadle.errors import TreadleError

_guarded: list[str] = []
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = {
    "os.rename": (0, 1),
    "os.remove": (0,),
    "os.rmdir": (0,),
    "os.mkdir": (0,),
    "os.truncate": (0,),
    "os.link": (1,),
    "os.symlink": (1,),
    "shutil.rmtree": (0,),
}
"""Events of Python that change a folder, and which of their arguments are the paths."""


class GuardedFolderError(TreadleError):
    """A program tried to write into the folder of a run that is only looked at."""


@contextmanager
def guarded(folder: Path) -> Iterator[None]:
    """Have an error raised wherever this process would write into a folder, or remove something from it."""
    _watch()
    # Worked out before it is in the list: what is looked up while it is there is looked at by the watch itself.
    place = os.path.realpath(folder)
    _guarded.append(place)
    try:
        yield
    finally:
        _guarded.remove(place)


@cache
def _watch() -> None:
    """Have this process look at what it writes; once, for Python does not let go of a watch."""
    sys.addaudithook(_look)


def _look(event: str, arguments: tuple[Any, ...]) -> None:
    if not _guarded:
        return
    if event == "open":
        path, _, flags = arguments
        if isinstance(flags, int) and flags & WRITING:
            _refuse_if_guarded(path)
    elif event in CHANGES:
        for place in CHANGES[event]:
            _refuse_if_guarded(arguments[place])


def _refuse_if_guarded(path: Any) -> None:
    if not isinstance(path, (str, bytes, os.PathLike)):
        return
    full = os.path.realpath(os.fsdecode(path))
    if any(full == folder or full.startswith(folder + os.sep) for folder in _guarded):
        raise GuardedFolderError(
            f"the program would write {full}, in the folder of the run that is being verified, by a path of its own; "
            "have it use trainer.run_dir"
        )
