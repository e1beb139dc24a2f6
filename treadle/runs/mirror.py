"""A run that is kept in a bucket, or another storage, and works in a folder of this machine.

Checkpoints go straight to where the run is kept. All other files - the log, the lines of metrics, panels, whatever
callbacks write - are made in the folder, as those of any run are, and copied with every checkpoint and at the end.
"""

import atexit
import hashlib
import logging
import os
import re
import shutil
import time
from contextlib import suppress
from pathlib import Path

from treadle.errors import CheckpointError, ConfigError, some_of
from treadle.files.file_lock import lock_file
from treadle.files.fsspec_storage import FsspecStorage
from treadle.files.scratch import room_of_user
from treadle.files.storage import LocalStorage, Storage
from treadle.runs.lease import NAME, Lease
from treadle.runs.place import find_mirror, is_moved, is_url, register, run_place
from treadle.runs.status import LOCK

logger = logging.getLogger(__name__)

OWN = ("checkpoints", NAME)
"""What of a run is kept in the storage and is no copy of what is in the folder."""
MARGIN = 0.1
"""Seconds by which the clock of a file system may lag behind."""

_COLLAPSED = re.compile(r"[a-zA-Z][\w+.-]+:/")
"""What is left of the beginning of a URL that was made a `Path`."""

Place = str | os.PathLike[str] | Storage
"""What a program gives to say where a run is kept: a path, a URL, or a storage."""
State = tuple[int, int]


class RunMirror:
    """Keeps a run in a storage; see the module.

    Args:
        storage: Where it is kept.

    Attributes:
        storage: The same.
        folder: The folder of this machine that the run works in, the same for every process here.
        is_open: Whether this process trains there.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        name = hashlib.sha256(storage.url.encode()).hexdigest()[:16]
        self.folder = room_of_user() / "runs" / name
        self.is_open = False
        self._began = time.time() - MARGIN
        self._kept: dict[str, State] = {}
        self._lease = Lease(storage)
        self._process = os.getpid()
        self._is_cleared_at_exit = False

    def open(self) -> None:
        """Take the place for this process, and have in the folder what is kept of the run.

        Raises:
            CheckpointError: Another process trains there.
            StorageError: The place cannot be reached now.
        """
        self._lease = Lease(self.storage)
        self._lease.take()
        self.is_open = True
        try:
            if self._kept:
                # What was written after the last run of this process ended.
                self.push()
            self._clear_old()
            self._pull()
        except BaseException:
            self._let_go()
            raise
        if not self._is_cleared_at_exit:
            self._is_cleared_at_exit = True
            atexit.register(self._leave)

    def _clear_old(self) -> None:
        """Remove what another process left in the folder: the truth is in the storage."""
        for name in self._files():
            path = self.folder / name
            with suppress(FileNotFoundError):
                if name in self._kept or path.stat().st_mtime < self._began:
                    path.unlink()
        self._kept = {}

    def _pull(self) -> None:
        for name in self.storage.files():
            path = self.folder / name
            if name.partition("/")[0] in OWN or path.exists():
                continue
            with suppress(FileNotFoundError):
                _download(self.storage, name, self.folder)
                self._kept[name] = _mirror_state(path)

    def _files(self) -> dict[str, State]:
        """Return the files of the folder that are to be kept; those being written are not."""
        found = {}
        for place, folders, names in os.walk(self.folder):
            at_top = Path(place) == self.folder
            folders[:] = sorted(one for one in folders if one[0] != "." and not (at_top and one in OWN))
            for path in (Path(place, one) for one in sorted(names) if one[0] != "."):
                with suppress(FileNotFoundError):
                    found[path.relative_to(self.folder).as_posix()] = _mirror_state(path)
        return found

    def push(self) -> None:
        """Copy what has changed in the folder.

        Raises:
            CheckpointError: Another process has taken the place.
            StorageError: Something cannot be copied now.
        """
        self._lease.check()
        now = self._files()
        for name, state in now.items():
            if self._kept.get(name) != state:
                with suppress(FileNotFoundError):  # it went away again
                    self.storage.upload(name, self.folder / name)
                    self._kept[name] = state
        for name in [name for name in self._kept if name not in now]:
            self.storage.remove(name)
            del self._kept[name]

    def close(self) -> None:
        """Copy the end of the run and let go of the place; what fails is reported."""
        if not self.is_open:
            return
        try:
            self.push()
        except CheckpointError as error:
            logger.warning("the last lines of the run are in %s and not where it is kept: %s", self.folder, error)
        self._let_go()

    def _let_go(self) -> None:
        self.is_open = False
        try:
            self._lease.release()
        except CheckpointError as error:
            logger.warning("the place of the run stays taken for a while: %s", error)

    def _leave(self) -> None:
        """Remove the folder when the process ends, unless something is only there."""
        if os.getpid() != self._process:
            return
        if self.is_open:
            self.close()
        left = [name for name, state in self._files().items() if self._kept.get(name) != state]
        if left:
            logger.warning(
                "written after the end of the run, so not kept with it in %s: %s, in %s",
                self.storage.url,
                some_of(left, 3),
                self.folder,
            )
            return
        with suppress(OSError):
            descriptor = os.open(self.folder / LOCK, os.O_RDWR)
            try:
                # Another process may have begun to train here; who waits for the lock makes everything anew.
                lock_file(descriptor)
                shutil.rmtree(self.folder, ignore_errors=True)
            finally:
                os.close(descriptor)


def _download(storage: Storage, name: str, folder: Path) -> None:
    """Copy a file of a run into the same place of a folder, and nowhere else."""
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise CheckpointError(f"{storage.address(name)} is no name of a file of a run; remove it")
    path.parent.mkdir(parents=True, exist_ok=True)
    storage.download(name, path)


def _mirror_state(path: Path) -> State:
    found = path.stat()
    return found.st_mtime_ns, found.st_size


def working_folder(place: Place) -> Path:
    """Return the folder that a run works in for which the program names `place`.

    For a path that is the folder itself, where the run is kept. For a URL or a storage it is one of this machine, from
    which the run is copied to where it is kept.

    Raises:
        ConfigError: It is no place for a run.
        MissingDependencyError: A package that reads such URLs is not installed.
    """
    if isinstance(place, Path) and find_mirror(place) is not None:
        return place
    storage = open_storage(place)
    if isinstance(storage, LocalStorage):
        return run_place(storage.folder)
    if is_moved():
        return run_place(Path(storage.url))
    return register(RunMirror(storage)).folder


def open_storage(place: Place) -> Storage:
    """Return the storage that `place` names: itself, a URL for fsspec, or a folder of this machine.

    Raises:
        ConfigError: It names none.
        MissingDependencyError: A package that reads such URLs is not installed.
    """
    if isinstance(place, str) and is_url(place):
        return FsspecStorage(place)
    if isinstance(place, (str, os.PathLike)):
        refuse_collapsed(place)
        return LocalStorage(place)
    missing = [verb for verb in ("url", "read", "write", "files", "remove") if not hasattr(place, verb)]
    if missing or isinstance(place, type):
        raise ConfigError(
            f"run_dir={place!r} is no place for a run: give a path, a URL such as 's3://bucket/run', or an object of a "
            "subclass of treadle.checkpoint.Storage"
        )
    return place


def refuse_collapsed(place: str | os.PathLike[str]) -> None:
    """Refuse the path that is left of a URL when it was made a `Path`: it would name a folder on this disk.

    Raises:
        ConfigError: It is one.
    """
    text = os.fspath(place)
    if not isinstance(place, str) and _COLLAPSED.match(text):
        raise ConfigError(f"{place!r} is a URL that was made a Path, which loses a slash of it; give it as a string")


def fetch_run(place: Place, folder: Path) -> tuple[int, int]:
    """Copy a run that is kept elsewhere into a new folder; return how many files and bytes that are.

    Checkpoints are verified when they are read, as any are. One that was replaced while it was copied is left out: its
    manifest names files that are no longer there.

    Raises:
        CheckpointError: There is no run, the folder is there already, or a file cannot be written.
        StorageError: The place cannot be read now.
    """
    storage = open_storage(place)
    files = {name: size for name, size in storage.files().items() if name != NAME}
    if not any(name.startswith("checkpoints/") for name in files):
        raise CheckpointError(f"{storage.url} holds no run; give the URL that was the run_dir of one")
    if folder.exists():
        raise CheckpointError(f"{folder} is there already; give the name of a new folder")
    for name in files:
        try:
            with suppress(FileNotFoundError):
                _download(storage, name, folder)
        except OSError as error:
            raise CheckpointError(f"cannot write {folder / name}: {error}; choose another folder") from error
    return len(files), sum(files.values())
