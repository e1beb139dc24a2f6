"""Where a program's runs are kept: in the folders it names, or elsewhere: in a bucket, or while it is run again."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from treadle.errors import ConfigError
from treadle.files.bounded_io import without_passwords

if TYPE_CHECKING:
    from treadle.runs.mirror import RunMirror


_URL = re.compile(r"[a-zA-Z][\w+.-]*(::|://)")
_ELSEWHERE = re.compile(r"[a-zA-Z][\w+.-]+:[:/]")
"""How a URL begins, even one that was made a `Path` and lost a slash by that."""
_moves: list[Callable[[Path, bool], Path]] = []
_mirrors: dict[Path, "RunMirror"] = {}
"""What keeps a run elsewhere, by the folder of this machine that the run works in."""


@contextmanager
def moved(move: Callable[[Path, bool], Path]) -> Iterator[None]:
    """Have every run of the block kept where `move` says.

    Args:
        move: Called with the folder that the program names, and whether the program chose its name; returns another.
    """
    _moves.append(move)
    try:
        yield
    finally:
        _moves.remove(move)


def is_moved() -> bool:
    """Whether the runs of this program are kept elsewhere at present."""
    return bool(_moves)


def run_place(folder: Path, *, chosen: bool = True) -> Path:
    """Return where a run is kept for which the program names `folder`.

    Args:
        folder: The folder.
        chosen: Whether the program chose the name; otherwise it was made up for a run that begins.
    """
    return _moves[-1](folder, chosen) if _moves else folder


def register(mirror: "RunMirror") -> "RunMirror":
    """Keep elsewhere the runs that work in the folder of `mirror`; return what does so from now on.

    A run of this process may have been there before: what keeps that goes on with it, in the storage of now.
    """
    known = _mirrors.setdefault(mirror.folder, mirror)
    if not known.is_open:
        known.storage = mirror.storage
    return known


def find_mirror(folder: Path) -> "RunMirror | None":
    """Return what keeps elsewhere the run that works in a folder; None if it is kept in the folder itself."""
    return _mirrors.get(folder)


def run_address(folder: Path | None) -> str:
    """Return what people call the place of a run: its folder, or the URL of where it is kept."""
    mirror = None if folder is None else _mirrors.get(folder)
    return str(folder) if mirror is None else mirror.storage.url


def is_url(place: object) -> bool:
    """Whether `place` is the URL of a place elsewhere, and no path.

    >>> is_url("s3://bucket/run"), is_url("runs/first"), is_url("C:/runs")
    (True, False, False)
    """
    return isinstance(place, str) and _URL.match(place) is not None


def require_folder(place: "str | os.PathLike[str]", what: str) -> None:
    """Refuse a URL where a folder of this machine is needed.

    Args:
        place: What was given.
        what: Who needs it, and for what, in words.

    Raises:
        ConfigError: It is a URL; the message says what to do.
    """
    text = os.fspath(place)
    if _ELSEWHERE.match(text):
        url = without_passwords(text if "://" in text or "::" in text else text.replace(":/", "://", 1))
        raise ConfigError(
            f"{url} is no folder of this machine, and {what}; what is kept there is copied by: treadle fetch {url} "
            "FOLDER"
        )
