"""Runs in a bucket, or in any other file system that fsspec knows."""

import inspect
import os
import time
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from treadle.errors import ConfigError, MissingDependencyError, StorageError, importing
from treadle.files import atomic_io as durable
from treadle.files.bounded_io import without_passwords
from treadle.files.storage import Storage

PLAIN_OBJECTS = frozenset({"abfs", "abfss", "adl", "az", "gcs", "gs", "memory", "oci", "oss", "s3", "s3a", "tos"})
"""Protocols of stores in which an object is there when it is complete, so that none is written under another name."""
EXTRAS = {"s3": "s3", "s3a": "s3"}
"""Which extra of Treadle brings what a protocol needs."""
FINAL = (FileNotFoundError, FileExistsError, PermissionError, NotImplementedError, ImportError, ValueError, TypeError)
"""What is not tried again: it would be the same."""

Found = TypeVar("Found")


class FsspecStorage(Storage):
    """Keeps files where a URL of fsspec says: `s3://bucket/run`, `gs://...`, `memory://...`, `file:///...`.

    What fsspec and the package behind it read from the environment, such as credentials, is read by them.

    Args:
        url: The URL.
        options: What else the file system is told: `endpoint_url=`, `profile=` and so on.

    Raises:
        ConfigError: No file system is known by such a URL, or it refuses the options.
        MissingDependencyError: A package that it needs is not installed.
    """

    def __init__(self, url: str, **options: Any) -> None:
        self.url = without_passwords(url)
        with importing("fsspec", extra="remote", user=f"run_dir={self.url!r}"):
            from fsspec.core import url_to_fs
        kind = url.partition("://")[0].partition("::")[0]
        try:
            self._fs, root = url_to_fs(url, **options)
        except ImportError as error:
            extra = EXTRAS.get(kind)
            remedy = f"pip install 'treadle[{extra}]'" if extra else "install what it names"
            raise MissingDependencyError(f"{self.url} cannot be opened: {error}; {remedy}") from error
        except Exception as error:
            reason = without_passwords(f"{type(error).__name__}: {error}")
            raise ConfigError(f"{self.url} cannot be opened ({reason}); correct the URL or its options") from error
        self._root = str(root).rstrip("/")
        kinds = {self._fs.protocol} if isinstance(self._fs.protocol, str) else set(self._fs.protocol)
        self.shared = "memory" not in kinds
        self._has_plain_objects = bool(kinds & PLAIN_OBJECTS)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def read(self, name: str) -> bytes:
        """Return what is in a file."""
        found: bytes = self._patiently("read", name, lambda: self._fs.cat_file(self._path(name)))
        return found

    def write(self, name: str, data: bytes) -> None:
        """Put a file there, or another in its place."""
        self._patiently("written", name, lambda: self._put(name, lambda path: self._fs.pipe_file(path, data)))

    def upload(self, name: str, file: Path) -> None:
        """Write what is in a file of this machine."""
        self._patiently("written", name, lambda: self._put(name, lambda path: self._fs.put_file(str(file), path)))

    def download(self, name: str, file: Path) -> None:
        """Copy a file to this machine."""
        self._patiently("read", name, lambda: self._fs.get_file(self._path(name), str(file)))

    def _put(self, name: str, put: Callable[[str], object]) -> None:
        path = self._path(name)
        if self._has_plain_objects:
            put(path)
            return
        place = PurePosixPath(path)
        # Not in the folder of the file: a list of it may be read at any moment.
        room = f"{self._root}/.part/{os.getpid()}_{time.time_ns()}"
        self._fs.makedirs(f"{self._root}/.part", exist_ok=True)
        self._fs.makedirs(str(place.parent), exist_ok=True)
        try:
            put(room)
            self._fs.mv(room, path)
        except BaseException:
            if self._fs.exists(room):
                self._fs.rm(room)
            raise

    def create(self, name: str, data: bytes) -> bool:
        """Write a file if there is none of that name; in one step where the file system can."""
        if "mode" not in inspect.signature(self._fs.pipe_file).parameters:
            return super().create(name, data)
        if not self._has_plain_objects:
            parent = str(PurePosixPath(self._path(name)).parent)
            self._patiently("written", name, lambda: self._fs.makedirs(parent, exist_ok=True))
        try:
            self._patiently("written", name, lambda: self._fs.pipe_file(self._path(name), data, mode="create"))
        except FileExistsError:
            return False
        except NotImplementedError:
            return super().create(name, data)
        return True

    def files(self, folder: str = "") -> dict[str, int]:
        """Return the names of all files below a folder, with their sizes."""
        # What walks through folders would leave out those that it cannot list.
        strictly = {} if self._has_plain_objects else {"on_error": "raise"}

        def find() -> dict[str, Any]:
            self._fs.invalidate_cache()
            try:
                found: dict[str, Any] = self._fs.find(self._path(folder), detail=True, **strictly)
            except FileNotFoundError:
                # Nothing is there, or it went away while it was listed.
                found = self._fs.find(self._path(folder), detail=True)
            return found

        found = self._patiently("listed", folder, find)
        before = len(self._path("")) + 1
        names = {path[before:]: int(entry["size"] or 0) for path, entry in found.items()}
        within = f"{folder}/" if folder else ""
        return {name: size for name, size in sorted(names.items()) if name.startswith(within) and name[:6] != ".part/"}

    def remove(self, name: str) -> None:
        """Remove a file, or all below a folder."""

        def remove() -> None:
            self._fs.invalidate_cache()
            try:
                self._fs.rm(self._path(name), recursive=True)
            except FileNotFoundError:
                return

        self._patiently("removed", name, remove)

    def clear_leftovers(self) -> None:
        """Remove what was being written under another name."""
        if not self._has_plain_objects:
            self.remove(".part")

    def _patiently(self, action: str, name: str, act: Callable[[], Found]) -> Found:
        """Return what `act` does; what fails is tried again a few times, as a network asks for.

        Raises:
            FileNotFoundError: The file is not there.
            FileExistsError, NotImplementedError: From `create`.
            StorageError: It failed for another reason, which says nothing about the file.
        """
        for pause in (*durable.PAUSES, None):
            try:
                return act()
            except (FileNotFoundError, FileExistsError, NotImplementedError):
                raise
            except IsADirectoryError as error:
                raise FileNotFoundError(f"{self.address(name)} is no file") from error
            except Exception as error:  # each file system has errors of its own, many of no common kind
                if pause is None or isinstance(error, FINAL):
                    reason = without_passwords(f"{type(error).__name__}: {error}")
                    raise StorageError(
                        f"{self.address(name)} cannot be {action} now: {reason}; nothing of the run was given up: "
                        "start again when the place can be reached with these credentials"
                    ) from error
            time.sleep(pause)
        raise AssertionError("the last attempt returns or raises")
