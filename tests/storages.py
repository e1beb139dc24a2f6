"""The places that a run is kept in by the tests that are about every place."""

from pathlib import Path

from tests.sqlite_storage import SqliteStorage
from treadle.checkpoint import FsspecStorage, LocalStorage, Storage
from treadle.files.storage import Within

KINDS = ("folder", "file", "sqlite")
"""A folder of this disk; the same by fsspec, which is told nothing of folders; and a storage of somebody's own."""
KEPT = "kept"


def place_in(kind: str, folder: Path) -> Path | str | Storage:
    """Return what to give as `run_dir` to have a run kept in a place within a folder."""
    if kind == "sqlite":
        return SqliteStorage(folder / f"{KEPT}.sqlite")
    return folder if kind == "folder" else f"file://{folder.absolute()}/{KEPT}"


def storage_in(kind: str, folder: Path) -> Storage:
    """Return the storage of such a run."""
    place = place_in(kind, folder)
    if isinstance(place, Path):
        return LocalStorage(place)
    return FsspecStorage(place) if isinstance(place, str) else place


def checkpoints_in(kind: str, folder: Path) -> Path | Storage:
    """Return where the checkpoints of such a run are, for a `CheckpointStore`."""
    return folder / "checkpoints" if kind == "folder" else Within(storage_in(kind, folder), "checkpoints")
