"""Where the files of a run are kept: on the local disk, in a bucket, or wherever somebody's own storage puts them."""

import os
import shutil
from abc import abstractmethod
from pathlib import Path
from typing import Protocol

from treadle.files.atomic_io import give_plain_mode, replace_file


class Storage(Protocol):
    """Keeps files by name. A name is words with slashes between them; there are no folders beside that.

    Give an object of a subclass as `Trainer(run_dir=...)`. The first four methods are all that is needed; the others
    have versions here that are made of those. All that is asked of them:

    - What was written is there for whoever reads after `write` has returned, in this process or another.
    - A file that is written is seen as it was before or as it is after, never in part.
    - A file that is not there is a `FileNotFoundError`. Any other error means that nothing is known of the file: raise
      `treadle.errors.StorageError`, and it is never taken for a damaged or a missing one.

    Attributes:
        url: What people call the place, without passwords. Storages of the same `url` are taken for the same place.
        shared: Whether other processes see what this one writes; if not, no run of several processes is kept there.
    """

    url: str
    shared: bool = True

    @abstractmethod
    def read(self, name: str) -> bytes:
        """Return what is in a file.

        Raises:
            FileNotFoundError: It is not there.
            StorageError: It cannot be read now.
        """

    @abstractmethod
    def write(self, name: str, data: bytes) -> None:
        """Put a file there, or another in its place: whole or not at all.

        Raises:
            StorageError: It cannot be written.
        """

    @abstractmethod
    def files(self, folder: str = "") -> dict[str, int]:
        """Return the names of all files that begin with `folder` and a slash, however deep, with their sizes.

        Raises:
            StorageError: They cannot be listed now.
        """

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove the file of that name, and all whose names begin with it and a slash; there may be none.

        Raises:
            StorageError: One cannot be removed.
        """

    def create(self, name: str, data: bytes) -> bool:
        """Write a file if there is none of that name, and return whether there was none.

        This one looks first and writes then, and another process may do so in between. A storage that can do both at
        once should: the lock of a run is made by it.

        Raises:
            StorageError: It cannot be written.
        """
        if name in self.files(_parent_folder(name)):
            return False
        self.write(name, data)
        return True

    def upload(self, name: str, file: Path) -> None:
        """Write what is in a file of this machine.

        Raises:
            StorageError: It cannot be written.
        """
        self.write(name, file.read_bytes())

    def download(self, name: str, file: Path) -> None:
        """Copy a file to this machine.

        Raises:
            FileNotFoundError: It is not there.
            StorageError: It cannot be read now.
        """
        file.write_bytes(self.read(name))

    def clear_leftovers(self) -> None:
        """Remove what a process that was killed left half written, where that can be; nobody else writes now."""
        return

    def address(self, name: str) -> str:
        """Return what people call a file."""
        return f"{self.url.rstrip('/')}/{name}"


def _parent_folder(name: str) -> str:
    return name.rpartition("/")[0]


class LocalStorage(Storage):
    """Keeps files in a folder of this machine, or of a file system that looks like one.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.url = str(self.folder)

    def path(self, name: str) -> Path:
        """Return where a file lies."""
        return self.folder / name

    def read(self, name: str) -> bytes:
        """Return what is in a file."""
        return self.path(name).read_bytes()

    def write(self, name: str, data: bytes) -> None:
        """Put a file there, or another in its place, and force it out to the disk."""
        replace_file(self.path(name), lambda temporary: temporary.write_bytes(data))

    def files(self, folder: str = "") -> dict[str, int]:
        """Return the names of all files below a folder, with their sizes."""
        found = {}
        for place, folders, names in os.walk(self.path(folder), onerror=_raise_unless_absent):
            folders.sort()
            for path in (Path(place, name) for name in sorted(names)):
                found[path.relative_to(self.folder).as_posix()] = path.stat().st_size
        return found

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with all in it."""
        path = self.path(name)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def create(self, name: str, data: bytes) -> bool:
        """Write a file if there is none of that name, and return whether there was none."""
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with path.open("xb") as file:
                file.write(data)
        except FileExistsError:
            return False
        give_plain_mode(path)
        return True

    def upload(self, name: str, file: Path) -> None:
        """Write what is in another file."""
        replace_file(self.path(name), lambda temporary: shutil.copyfile(file, temporary))

    def download(self, name: str, file: Path) -> None:
        """Copy a file."""
        shutil.copyfile(self.path(name), file)

    def address(self, name: str) -> str:
        """Return the path of a file."""
        return str(self.path(name))


def _raise_unless_absent(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


class Within(Storage):
    """A part of another storage: the files whose names begin with a word and a slash.

    Args:
        storage: The other storage.
        folder: The word.
    """

    def __init__(self, storage: Storage, folder: str) -> None:
        self._storage, self._folder = storage, folder
        self.url, self.shared = storage.address(folder), storage.shared

    def _name(self, name: str) -> str:
        return f"{self._folder}/{name}" if name else self._folder

    def read(self, name: str) -> bytes:
        """Return what is in a file."""
        return self._storage.read(self._name(name))

    def write(self, name: str, data: bytes) -> None:
        """Put a file there, or another in its place."""
        self._storage.write(self._name(name), data)

    def files(self, folder: str = "") -> dict[str, int]:
        """Return the names of all files below a folder, with their sizes."""
        found = self._storage.files(self._name(folder))
        return {name.removeprefix(f"{self._folder}/"): size for name, size in found.items()}

    def remove(self, name: str) -> None:
        """Remove a file, or all below a folder."""
        self._storage.remove(self._name(name))

    def create(self, name: str, data: bytes) -> bool:
        """Write a file if there is none of that name, and return whether there was none."""
        return self._storage.create(self._name(name), data)

    def upload(self, name: str, file: Path) -> None:
        """Write what is in a file of this machine."""
        self._storage.upload(self._name(name), file)

    def download(self, name: str, file: Path) -> None:
        """Copy a file to this machine."""
        self._storage.download(self._name(name), file)

    def clear_leftovers(self) -> None:
        """Remove what a process that was killed left half written."""
        self._storage.clear_leftovers()
