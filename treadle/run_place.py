"""Where a program's runs are kept: in the folders it names, or elsewhere while somebody has it run again."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_moves: list[Callable[[Path, bool], Path]] = []


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


def place_of(folder: Path, *, chosen: bool = True) -> Path:
    """Return where a run is kept for which the program names `folder`.

    Args:
        folder: The folder.
        chosen: Whether the program chose the name; otherwise it was made up for a run that begins.
    """
    return _moves[-1](folder, chosen) if _moves else folder
