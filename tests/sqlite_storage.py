"""A storage of somebody's own, in one file: all that a run needs is what `treadle.checkpoint.Storage` says."""

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from treadle.checkpoint import Storage
from treadle.errors import StorageError


class SqliteStorage(Storage):
    """Keeps the files of a run in a table of a database.

    Each verb is an event of Python's audit, before and after, so that a process can be killed there.

    Args:
        path: The file of the database.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.url = f"sqlite:{path}"

    @contextmanager
    def _table(self, verb: str) -> Iterator[sqlite3.Connection]:
        sys.audit("tests.storage", str(self._path), verb)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self._path, timeout=60)) as database, database:
                database.execute("CREATE TABLE IF NOT EXISTS files (name TEXT PRIMARY KEY, data BLOB)")
                yield database
        except sqlite3.Error as error:
            raise StorageError(f"{self.url} cannot be used now: {error}; free the database and start again") from error
        sys.audit("tests.storage", str(self._path), verb)

    def read(self, name: str) -> bytes:
        """Return what is in a file."""
        with self._table("read") as table:
            found = table.execute("SELECT data FROM files WHERE name = ?", (name,)).fetchone()
        if found is None:
            raise FileNotFoundError(f"there is no {self.address(name)}")
        return bytes(found[0])

    def write(self, name: str, data: bytes) -> None:
        """Put a file there, or another in its place."""
        with self._table("write") as table:
            table.execute("INSERT OR REPLACE INTO files VALUES (?, ?)", (name, data))

    def files(self, folder: str = "") -> dict[str, int]:
        """Return the names of all files below a folder, with their sizes."""
        within = f"{folder}/" if folder else ""
        with self._table("files") as table:
            found = table.execute("SELECT name, length(data) FROM files ORDER BY name").fetchall()
        return {name: size for name, size in found if name.startswith(within)}

    def remove(self, name: str) -> None:
        """Remove a file, or all below a folder."""
        with self._table("remove") as table:
            table.execute(
                "DELETE FROM files WHERE name = ? OR substr(name, 1, ?) = ?", (name, len(name) + 1, f"{name}/")
            )

    def create(self, name: str, data: bytes) -> bool:
        """Write a file if there is none of that name, and return whether there was none."""
        with self._table("create") as table:
            return table.execute("INSERT OR IGNORE INTO files VALUES (?, ?)", (name, data)).rowcount == 1
