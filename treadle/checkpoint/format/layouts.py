"""How checkpoints lie in a storage, and how one becomes visible: by its folder's name, or by its manifest."""

import json
import logging
import os
import re
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

from treadle.checkpoint.format.manifest import MANIFEST, sealed, write_manifest
from treadle.checkpoint.format.readers import FolderReader, ObjectReader, Reader
from treadle.checkpoint.format.shards import SHARED, SHARED_NAME
from treadle.errors import CheckpointError, StorageError
from treadle.files.atomic_io import clear_parts, read_patiently, replace_text, sync_file, telling_absence
from treadle.files.scratch import scratch
from treadle.files.storage import LocalStorage, Storage

logger = logging.getLogger(__name__)

PREFIX = "step_"
REPLACED = ".replaced"
PART = ".part_"
SET_ASIDE = "damaged_"


class Layout(ABC):
    """Puts the files of checkpoints into a storage and finds them there.

    Every rank writes into a part; the first one gives what all of them wrote to readers.

    Attributes:
        pause: Seconds between two looks whether another rank is done.
    """

    pause: float

    @abstractmethod
    def part(self, step: int, attempt: str, number: int) -> str:
        """Return the name of the part of a save."""

    @abstractmethod
    def filling(self, part: str) -> AbstractContextManager[Path]:
        """Give the block a folder for this rank's files, which are in the part after it."""

    def share(self, name: str, size: int, folder: Path) -> bool:
        """Put a file that an earlier checkpoint has into a folder that is being filled, at no cost, where that can be.

        Args:
            name: Its name, which no other file has.
            size: Its size.
            folder: The folder.

        Returns:
            Whether it is there now; if not, it has to be written.
        """
        return False

    @abstractmethod
    def announce(self, part: str, rank: int, entry: dict[str, Any]) -> None:
        """Say that the files of a rank are complete, and what they are; nothing of that rank comes after."""

    @abstractmethod
    def announced(self, part: str, rank: int) -> dict[str, Any] | None:
        """Return what a rank announced; None while it has not."""

    @abstractmethod
    def give_up(self, part: str, rank: int) -> None:
        """Leave nothing of a part that cannot be written, and say so where others wait for it."""

    @abstractmethod
    def has_given_up(self, part: str, rank: int) -> bool:
        """Whether a rank said so."""

    @abstractmethod
    def commit(self, part: str, step: int, facts: dict[str, Any]) -> Callable[[], object]:
        """Make a part that is complete the checkpoint of a step: at once, in the place of an older one of that step.

        Returns:
            What removes the older one, to be called when the pointers are written.
        """

    @abstractmethod
    def entries(self) -> dict[str, bool]:
        """Return the names of what lies beside each other, and whether each is a checkpoint's folder.

        Raises:
            StorageError: It cannot be listed now.
        """

    @abstractmethod
    def steps(self) -> list[int]:
        """Return the steps that have a checkpoint, oldest first.

        Raises:
            StorageError: They cannot be listed now.
        """

    @abstractmethod
    def has(self, step: int) -> bool:
        """Whether there is a checkpoint of a step."""

    @abstractmethod
    def reader(self, step: int) -> Reader:
        """Return what reads the files of a checkpoint."""

    @abstractmethod
    def read_pointer(self, name: str) -> str:
        """Return what a pointer says."""

    @abstractmethod
    def write_pointer(self, name: str, step: int) -> None:
        """Let a pointer name a checkpoint."""

    @abstractmethod
    def remove_pointer(self, name: str) -> None:
        """Remove a pointer."""

    @abstractmethod
    def remove(self, step: int) -> None:
        """Remove a checkpoint; a kill leaves no half of one under a good name."""

    @abstractmethod
    def set_aside(self, step: int) -> None:
        """Keep a damaged checkpoint where no reader takes it for one of the run."""

    @abstractmethod
    def clear_removed(self) -> None:
        """Remove what is left of checkpoints that were removed."""

    @abstractmethod
    def clear_parts_before(self, attempt: str, number: int, step: int) -> None:
        """Remove parts that another rank wrote after the first one had given up; those of later saves are needed."""

    @abstractmethod
    def clear_leftovers(self) -> None:
        """Remove what an earlier process left half written."""


def step_name(step: int) -> str:
    """Return the name of the folder of a checkpoint."""
    return f"{PREFIX}{step:08d}"


def _done(rank: int) -> str:
    return f"rank_{rank}.done"


def _failed(rank: int) -> str:
    return f"rank_{rank}.failed"


class FolderLayout(Layout):
    """Checkpoints as folders of a disk: written under another name and renamed when they are complete.

    Args:
        storage: The folder of them.
    """

    pause = 0.005

    def __init__(self, storage: LocalStorage) -> None:
        self.storage, self.folder = storage, storage.folder

    def part(self, step: int, attempt: str, number: int) -> str:
        """Return the name of the part of a save."""
        return f"{PART}{attempt}_{number:06d}_{step:08d}"

    @contextmanager
    def filling(self, part: str) -> Iterator[Path]:
        """Give the block the folder of the part."""
        folder = self.folder / part
        folder.mkdir(parents=True, exist_ok=True)
        yield folder

    def share(self, name: str, size: int, folder: Path) -> bool:
        """Let two folders name the same file; the disk keeps it until no checkpoint names it any more."""
        for pattern in (f"{PREFIX}*", f"{PART}*"):
            for path in sorted(self.folder.glob(f"{pattern}/{name}"), reverse=True):
                # Another rank may remove it, or give its folder a name, at any moment; not every disk has hard links.
                with suppress(OSError):
                    if path.stat().st_size == size:
                        os.link(path, folder / name)
                        return True
        return False

    def announce(self, part: str, rank: int, entry: dict[str, Any]) -> None:
        """Say that the files of a rank are complete."""
        # Nothing comes after: the first rank may give the folder its name at once, and forces out what is in it.
        temporary = self.folder / part / f"{_done(rank)}.part"
        temporary.write_text(json.dumps(entry), encoding="utf-8")
        os.replace(temporary, self.folder / part / _done(rank))

    def announced(self, part: str, rank: int) -> dict[str, Any] | None:
        """Return what a rank announced."""
        path = self.folder / part / _done(rank)
        if not path.exists():
            return None
        entry: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        path.unlink()
        return entry

    def give_up(self, part: str, rank: int) -> None:
        """Leave nothing of a part that cannot be written; the first rank must not wait for it."""
        folder = self.folder / part
        if rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
            return
        with suppress(OSError):
            (folder / _failed(rank)).touch()

    def has_given_up(self, part: str, rank: int) -> bool:
        """Whether a rank said so."""
        return (self.folder / part / _failed(rank)).exists()

    def commit(self, part: str, step: int, facts: dict[str, Any]) -> Callable[[], object]:
        """Give a part the name of the checkpoint."""
        folder = self.folder / part
        write_manifest(folder, facts)
        sync_file(folder)
        target, replaced = self._names(step)
        if target.exists():
            # The same step again, after a return to an earlier one. Two folders cannot be swapped at once: the old
            # one stays where readers find it until the new one has its name.
            shutil.rmtree(replaced, ignore_errors=True)
            os.replace(target, replaced)
        os.replace(folder, target)
        sync_file(self.folder)
        return lambda: shutil.rmtree(replaced, ignore_errors=True)

    def _names(self, step: int) -> tuple[Path, Path]:
        """Return the folder of the checkpoint at `step`, and where an older one gives way to a new one."""
        name = step_name(step)
        return self.folder / name, self.folder / (name + REPLACED)

    def path(self, step: int) -> Path:
        """Return the folder of the checkpoint at `step`."""
        target, replaced = self._names(step)
        return replaced if not target.exists() and replaced.exists() else target

    def entries(self) -> dict[str, bool]:
        """Return the names of what lies in the folder, and whether each is a folder; nothing if it is not there."""

        def read() -> dict[str, bool]:
            with os.scandir(self.folder) as entries:
                return {entry.name: entry.is_dir() for entry in entries}

        try:
            with telling_absence(self.folder):
                return read_patiently(read)
        except OSError:
            return {}

    def steps(self) -> list[int]:
        """Return the steps that have a checkpoint, oldest first."""
        folders = {name for name, is_folder in self.entries().items() if is_folder and name.startswith(PREFIX)}
        numbers = [name.removeprefix(PREFIX).removesuffix(REPLACED) for name in folders]
        steps = {int(number) for number in numbers if number.isdecimal()}
        return sorted(step for step in steps if folders & {path.name for path in self._names(step)})

    def has(self, step: int) -> bool:
        """Whether there is a checkpoint of a step."""
        return self.path(step).is_dir()

    def reader(self, step: int) -> Reader:
        """Return what reads the files of a checkpoint."""
        return FolderReader(self.path(step))

    def read_pointer(self, name: str) -> str:
        """Return what a pointer says."""
        path = self.folder / name
        with telling_absence(path):
            return read_patiently(lambda: path.read_text(encoding="utf-8")).strip()

    def write_pointer(self, name: str, step: int) -> None:
        """Let a pointer name a checkpoint."""
        replace_text(self.folder / name, step_name(step))

    def remove_pointer(self, name: str) -> None:
        """Remove a pointer."""
        (self.folder / name).unlink(missing_ok=True)

    def remove(self, step: int) -> None:
        """Remove a checkpoint; first out of sight, so that a kill leaves no half of one under a good name."""
        for path in reversed(self._names(step)):
            if path.exists():
                hidden = self.folder / f"{PART}old_{path.name}_{time.time_ns()}"
                os.replace(path, hidden)
                shutil.rmtree(hidden, ignore_errors=True)

    def set_aside(self, step: int) -> None:
        """Keep a damaged checkpoint under another name."""
        for path in self._names(step):
            if path.exists():
                aside = self.folder / f"{SET_ASIDE}{path.name}"
                number = 1
                while aside.exists():
                    number += 1
                    aside = self.folder / f"{SET_ASIDE}{path.name}_{number}"
                os.replace(path, aside)
                logger.warning("the damaged checkpoint of step %d is kept as %s; remove it when you like", step, aside)

    def clear_removed(self) -> None:
        """Remove what is left of checkpoints that were removed."""
        self._clear(f"{PART}old_*")

    def _clear(self, pattern: str) -> None:
        for path in self.folder.glob(pattern):
            shutil.rmtree(path, ignore_errors=True)

    def clear_parts_before(self, attempt: str, number: int, step: int) -> None:
        """Remove parts that another rank wrote after the first one had given up; those of later saves are needed."""
        for path in self.folder.glob(f"{PART}{attempt}_*"):
            saved, of_step = path.name.removeprefix(f"{PART}{attempt}_").split("_")
            if (int(saved), int(of_step)) < (number, step):
                shutil.rmtree(path, ignore_errors=True)

    def clear_leftovers(self) -> None:
        """Remove what an earlier process left half written."""
        replaced = [self._names(step)[1] for step in self.steps() if self._names(step)[0].exists()]
        for path in (*self.folder.glob(f"{PART}*"), *replaced):
            shutil.rmtree(path, ignore_errors=True)
        clear_parts(self.folder)


_COMMITTED = re.compile(rf"{PREFIX}(\d{{1,19}})/{re.escape(MANIFEST)}")
_IN_A_ROOM = re.compile(rf"({PREFIX}\d{{1,19}})/([^/]+)/(.+)")


class ObjectLayout(Layout):
    """Checkpoints as objects, which nobody can rename: there is one where a manifest is.

    The files of each save have a room of their own, `step_00001200/<save>/`, and `step_00001200/manifest.json`, written
    last, names the room. So the same step can be saved again, and whoever reads has the old files or the new ones.
    A damaged one is set aside by putting its manifest into the room: from then on it is no checkpoint of the run.
    Files that several checkpoints share are in `shared/`, and go when no manifest names them any more.

    Args:
        storage: Where they are kept.
    """

    pause = 0.5

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._own: dict[str, dict[str, Any]] = {}

    def part(self, step: int, attempt: str, number: int) -> str:
        """Return the name of the room of a save."""
        return f"{step_name(step)}/{attempt}_{number:06d}"

    @contextmanager
    def filling(self, part: str) -> Iterator[Path]:
        """Give the block a folder of this machine, and copy what is in it into the room."""
        with scratch() as folder:
            yield folder
            for file in sorted(folder.iterdir()):
                self.storage.upload(f"{SHARED if SHARED_NAME.fullmatch(file.name) else part}/{file.name}", file)

    def share(self, name: str, size: int, folder: Path) -> bool:
        """Have the checkpoint name the file that is there."""
        return self.storage.files(SHARED).get(f"{SHARED}/{name}") == size

    def announce(self, part: str, rank: int, entry: dict[str, Any]) -> None:
        """Say that the files of a rank are complete; the first one tells nobody but itself."""
        if rank == 0:
            self._own[part] = entry
        else:
            self._write(f"{part}/{_done(rank)}", entry)

    def _write(self, name: str, content: dict[str, Any]) -> None:
        self.storage.write(name, json.dumps(content, indent=1).encode())

    def announced(self, part: str, rank: int) -> dict[str, Any] | None:
        """Return what a rank announced."""
        if rank == 0:
            return self._own.pop(part)
        try:
            content: dict[str, Any] = json.loads(self.storage.read(f"{part}/{_done(rank)}"))
        except FileNotFoundError:
            return None
        return content

    def give_up(self, part: str, rank: int) -> None:
        """Leave nothing of a part that cannot be written; the first rank must not wait for it."""
        with suppress(StorageError, OSError):
            if rank == 0:
                self._own.pop(part, None)
                self.storage.remove(part)
            else:
                self.storage.write(f"{part}/{_failed(rank)}", b"")

    def has_given_up(self, part: str, rank: int) -> bool:
        """Whether a rank said so."""
        return f"{part}/{_failed(rank)}" in self.storage.files(part)

    def commit(self, part: str, step: int, facts: dict[str, Any]) -> Callable[[], object]:
        """Write the manifest that names the room."""
        room = part.partition("/")[2]
        self.storage.write(f"{step_name(step)}/{MANIFEST}", sealed({**facts, "folder": room}).encode())
        return lambda: self._clear_rooms(step, room)

    def _clear_rooms(self, step: int, named: str) -> None:
        """Remove what no manifest names any more; what cannot be removed is left for the next start.

        Another rank may be a save ahead, of the same step: the room of that one is being filled.
        """
        attempt, _, saved = named.rpartition("_")
        try:
            self._clear_folder(step_name(step), named, filling=lambda room: _is_save_after(int(saved), attempt, room))
        except StorageError as error:
            logger.warning("what is left of an earlier save is not removed this time: %s", error)

    def _clear_folder(
        self, folder: str, named: str | None, filling: Callable[[str], bool] = lambda room: False
    ) -> None:
        """Remove the rooms of a step but the one that is named, those that were set aside, and those being filled."""
        rooms = self._rooms(self.storage.files(folder))
        for room, files in rooms.get(folder, {}).items():
            if room == named:
                for file in (file for file in files if file.endswith((".done", ".failed"))):
                    self.storage.remove(f"{folder}/{room}/{file}")
            elif MANIFEST not in files and not filling(room):
                self.storage.remove(f"{folder}/{room}")

    @staticmethod
    def _rooms(files: dict[str, int]) -> dict[str, dict[str, list[str]]]:
        """Return the files of rooms by their step's folder and their room."""
        rooms: dict[str, dict[str, list[str]]] = {}
        for found in filter(None, map(_IN_A_ROOM.fullmatch, files)):
            folder, room, name = found.groups()
            rooms.setdefault(folder, {}).setdefault(room, []).append(name)
        return rooms

    def entries(self) -> dict[str, bool]:
        """Return the names of what lies beside each other, and whether each is a folder."""
        return {name.partition("/")[0]: "/" in name for name in self.storage.files()}

    def steps(self) -> list[int]:
        """Return the steps that have a checkpoint, oldest first."""
        found = (_COMMITTED.fullmatch(name) for name in self.storage.files())
        steps = {int(one[1]) for one in found if one is not None}
        return sorted(steps)

    def has(self, step: int) -> bool:
        """Whether there is a checkpoint of a step."""
        return f"{step_name(step)}/{MANIFEST}" in self.storage.files(step_name(step))

    def reader(self, step: int) -> Reader:
        """Return what reads the files of a checkpoint."""
        return ObjectReader(self.storage, step_name(step))

    def read_pointer(self, name: str) -> str:
        """Return what a pointer says."""
        return self.storage.read(name).decode().strip()

    def write_pointer(self, name: str, step: int) -> None:
        """Let a pointer name a checkpoint."""
        self.storage.write(name, step_name(step).encode())

    def remove_pointer(self, name: str) -> None:
        """Remove a pointer."""
        self.storage.remove(name)

    def remove(self, step: int) -> None:
        """Remove a checkpoint, its manifest first; what was set aside beside it stays."""
        folder = step_name(step)
        shared = self._shared_by(f"{folder}/{MANIFEST}") if self.storage.files(SHARED) else set()
        self.storage.remove(f"{folder}/{MANIFEST}")
        self._clear_folder(folder, None)
        # Only what it named: another rank may be a save ahead, and its files are in no manifest yet.
        self._clear_shared(shared)

    def _shared_by(self, manifest: str) -> set[str]:
        """Return the shared files that a manifest names.

        Raises:
            CheckpointError: It cannot be understood: any of them may be meant.
        """
        try:
            files = json.loads(self.storage.read(manifest))["files"]
            return {name for name in files if SHARED_NAME.fullmatch(name)}
        except FileNotFoundError:
            return set()
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{self.storage.address(manifest)} is no readable manifest: {error}") from error

    def _clear_shared(self, unneeded: set[str]) -> None:
        """Remove those of some shared files that no manifest names."""
        if not unneeded:
            return
        manifests = [name for name in self.storage.files() if name.endswith(f"/{MANIFEST}")]
        try:
            needed = set().union(*map(self._shared_by, manifests))
        except StorageError:
            raise
        except CheckpointError as error:
            logger.warning("files that checkpoints share are not removed this time: %s", error)
            return
        for name in sorted(unneeded - needed):
            self.storage.remove(f"{SHARED}/{name}")

    def set_aside(self, step: int) -> None:
        """Keep a damaged checkpoint: its manifest moves into the room, where no reader looks for one."""
        folder = step_name(step)
        manifest = self.storage.read(f"{folder}/{MANIFEST}")
        for room, files in self._rooms(self.storage.files(folder)).get(folder, {}).items():
            if MANIFEST not in files:
                self.storage.write(f"{folder}/{room}/{MANIFEST}", manifest)
                place = self.storage.address(f"{folder}/{room}")
                logger.warning("the damaged checkpoint of step %d is kept as %s; remove it when you like", step, place)
        self.storage.remove(f"{folder}/{MANIFEST}")

    def clear_removed(self) -> None:
        """Leave rooms without a manifest to the next start: nothing reads them."""

    def clear_parts_before(self, attempt: str, number: int, step: int) -> None:
        """Remove parts that another rank wrote after the first one had given up; those of later saves are needed."""
        for folder, rooms in self._rooms(self.storage.files()).items():
            for room, files in rooms.items():
                made, _, saved = room.rpartition("_")
                earlier = made == attempt and (int(saved), int(folder.removeprefix(PREFIX))) < (number, step)
                if earlier and MANIFEST not in files and room != self._named(folder):
                    self.storage.remove(f"{folder}/{room}")

    def _named(self, folder: str) -> str | None:
        """Return the room that the manifest of a step names; None if there is none.

        Raises:
            CheckpointError: It cannot be understood: any room may be the one.
        """
        try:
            named = json.loads(self.storage.read(f"{folder}/{MANIFEST}"))["folder"]
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{self.storage.address(folder)} has no readable manifest: {error}") from error
        return str(named)

    def clear_leftovers(self) -> None:
        """Remove what an earlier process left half written."""
        self.storage.clear_leftovers()
        for folder in self._rooms(self.storage.files()):
            try:
                named = self._named(folder)
            except StorageError:
                raise
            except CheckpointError:
                continue
            self._clear_folder(folder, named)
        self._clear_shared({name.removeprefix(f"{SHARED}/") for name in self.storage.files(SHARED)})


def _is_save_after(number: int, attempt: str, room: str) -> bool:
    made, _, saved = room.rpartition("_")
    return made == attempt and int(saved) > number
