"""Room on this machine for copies of what is kept elsewhere: a folder of each process, which is cleared after it."""

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from treadle.errors import ConfigError
from treadle.files.process_identity import process_start

PREFIX = "scratch_"


def room_of_user() -> Path:
    """Return a folder of this user alone, in the folder that the system has for temporary files.

    Raises:
        ConfigError: Its name is taken by something of somebody else's, or it cannot be made.
    """
    # Windows has a folder for temporary files for each user, and no numbers of users.
    user = os.getuid() if hasattr(os, "getuid") else None
    place = Path(tempfile.gettempdir()) / ("treadle" if user is None else f"treadle-{user}")
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = place.lstat()
    except OSError as error:
        raise ConfigError(
            f"{place} cannot be made: {error}; set TMPDIR to a folder that this process can write"
        ) from error
    if place.is_symlink() or (user is not None and found.st_uid != user):
        raise ConfigError(f"{place} belongs to somebody else; set TMPDIR to a folder of your own")
    return place


@contextmanager
def scratch() -> Iterator[Path]:
    """Make a folder for the block, which is removed after it."""
    with tempfile.TemporaryDirectory(dir=_room_of_process(os.getpid()), ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@cache
def _room_of_process(process: int) -> Path:
    room = room_of_user()
    clear_abandoned(room)
    own = room / f"{PREFIX}{process}_{process_start(process)}"
    own.mkdir(mode=0o700, exist_ok=True)
    atexit.register(_remove_own, own, process)
    return own


def _remove_own(folder: Path, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def clear_abandoned(room: Path) -> None:
    """Remove the scratch folders of processes that were killed."""
    for folder in room.glob(f"{PREFIX}*_*"):
        process, _, started = folder.name.removeprefix(PREFIX).partition("_")
        with suppress(ValueError):
            if process_start(int(process)) != started:
                shutil.rmtree(folder, ignore_errors=True)
