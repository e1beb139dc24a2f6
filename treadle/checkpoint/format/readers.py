"""Reading the files of one checkpoint, from a folder of this machine or from elsewhere."""

import json
from pathlib import Path
from typing import Any, Protocol

from treadle.checkpoint.format.deflate import inflated
from treadle.checkpoint.format.manifest import ADVICE, MANIFEST, deflated_name, file_names, read_manifest
from treadle.checkpoint.format.shards import SHARED, SHARED_NAME, PartFile
from treadle.errors import CheckpointError
from treadle.files.atomic_io import checksum, read_patiently, telling_absence
from treadle.files.scratch import scratch
from treadle.files.storage import Storage


class Reader(Protocol):
    """Reads the files of one checkpoint; as text, it is what people call that.

    A `FileNotFoundError` says that a file is not there, a `StorageError` that it cannot be read now.
    """

    def manifest(self) -> str:
        """Return the text of the manifest."""

    def files(self) -> "Reader":
        """Return what reads the files beside the manifest, or in the room that it names.

        Raises:
            CheckpointError: The manifest is needed to find the room, and cannot be understood.
        """

    def size(self, name: str) -> int:
        """Return the size of a file."""

    def checksum(self, name: str) -> str:
        """Return the checksum of a file."""

    def opened(self, rank: int) -> tuple[Any, PartFile]:
        """Return what a rank wrote: the structure of its state, and its tensors, to be read when they are asked for."""


class FolderReader(Reader):
    """Reads a checkpoint in a folder.

    Args:
        folder: The folder.
        shared: The folder of files that several checkpoints share, for those that do not lie in it themselves.
    """

    def __init__(self, folder: Path, shared: Path | None = None) -> None:
        self._folder, self._shared = folder, shared

    def __str__(self) -> str:
        return str(self._folder)

    def manifest(self) -> str:
        """Return the text of the manifest."""
        path = self._folder / MANIFEST
        with telling_absence(path, ADVICE):
            return read_patiently(lambda: path.read_text(encoding="utf-8"))

    def files(self) -> Reader:
        """Return itself, or what reads the room of a checkpoint that was copied from a bucket."""
        structures = (file_names(0)[1], deflated_name(0))
        here = any((self._folder / name).exists() for name in structures)
        is_plain = here or not (self._folder / MANIFEST).exists()
        room = None if is_plain else _shared_room(self)
        if room is None or not (self._folder / room).is_dir():
            return self
        return FolderReader(self._folder / room, self._folder.parent / SHARED)

    def _path(self, name: str) -> Path:
        folder = self._folder if self._shared is None or not SHARED_NAME.fullmatch(name) else self._shared
        return folder / name

    def size(self, name: str) -> int:
        """Return the size of a file."""
        path = self._path(name)
        with telling_absence(path, ADVICE):
            return read_patiently(lambda: path.stat().st_size)

    def checksum(self, name: str) -> str:
        """Return the checksum of a file."""
        path = self._path(name)
        with telling_absence(path, ADVICE):
            return read_patiently(lambda: checksum(path))

    def opened(self, rank: int) -> tuple[Any, PartFile]:
        """Return what a rank wrote."""
        tensor_file, structure_file = (self._folder / name for name in file_names(rank))
        packed = self._folder / deflated_name(rank)
        text = inflated(packed.read_bytes()) if packed.exists() else structure_file.read_text(encoding="utf-8")
        return json.loads(text), PartFile(tensor_file, self._path)


class ObjectReader(Reader):
    """Reads a checkpoint in a storage; large files are copied to this machine for as long as it takes to open them.

    Args:
        storage: The storage.
        folder: What the names of its files begin with.
    """

    def __init__(self, storage: Storage, folder: str) -> None:
        self._storage, self._folder = storage, folder

    def __str__(self) -> str:
        return self._storage.address(self._folder)

    def _name(self, name: str) -> str:
        return f"{SHARED if SHARED_NAME.fullmatch(name) else self._folder}/{name}"

    def manifest(self) -> str:
        """Return the text of the manifest."""
        return self._storage.read(self._name(MANIFEST)).decode()

    def files(self) -> Reader:
        """Return what reads the room."""
        return ObjectReader(self._storage, self._name(_shared_room(self) or ""))

    def size(self, name: str) -> int:
        """Return the size of a file."""
        files = self._storage.files(self._name(name).rpartition("/")[0])
        if self._name(name) not in files:
            raise FileNotFoundError(f"there is no {self._storage.address(self._name(name))}")
        return files[self._name(name)]

    def checksum(self, name: str) -> str:
        """Return the checksum of a file."""
        with scratch() as room:
            self._storage.download(self._name(name), room / "file")
            return checksum(room / "file")

    def opened(self, rank: int) -> tuple[Any, PartFile]:
        """Return what a rank wrote."""
        tensor_file, structure_file = file_names(rank)
        packed = self._name(deflated_name(rank))
        if packed in self._storage.files(self._folder):
            structure = json.loads(inflated(self._storage.read(packed)))
        else:
            structure = json.loads(self._storage.read(self._name(structure_file)))
        with scratch() as room:
            self._storage.download(self._name(tensor_file), room / tensor_file)
            tensors = PartFile(room / tensor_file)
            for name in tensors.shared_names():
                self._storage.download(self._name(name), room / name)
            # What is mapped into memory stays there when its name is gone.
            tensors.open()
        return structure, tensors


def _shared_room(reader: Reader) -> str | None:
    """Return the room that a manifest names; None if the files lie beside it.

    Raises:
        CheckpointError: It names something else.
    """
    room = read_manifest(reader).get("folder")
    if room is not None and (not isinstance(room, str) or not room.strip(".") or "/" in room or "\\" in room):
        raise CheckpointError(f"{reader} has a manifest that no run wrote: folder is {room!r}; restore it")
    return room
