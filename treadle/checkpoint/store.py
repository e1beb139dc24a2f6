"""The checkpoints of a run: each complete or absent, checked when read, the newest good one found."""

import json
import logging
import math
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from treadle.checkpoint.format.deflate import LEAST_BYTES, deflated
from treadle.checkpoint.format.layouts import PREFIX, FolderLayout, Layout, ObjectLayout
from treadle.checkpoint.format.manifest import (
    damage,
    deflated_name,
    describe_file,
    describe_files,
    file_names,
    read_manifest,
)
from treadle.checkpoint.format.readers import Reader
from treadle.checkpoint.format.shards import PartFile, materialised, merged
from treadle.checkpoint.format.tree import LazyTensors, join
from treadle.checkpoint.policy import Policy
from treadle.checkpoint.unchanged import Division, SharedFile, Unchanged, header, shared_header
from treadle.errors import CheckpointError, ConfigError, StorageError
from treadle.files.atomic_io import give_plain_mode, sync_file
from treadle.files.storage import LocalStorage, Storage, Within
from treadle.runs.place import find_mirror

if TYPE_CHECKING:
    from treadle.runs.mirror import RunMirror

logger = logging.getLogger(__name__)

PATIENCE = 600.0
"""Seconds that the first rank waits for another one's part of a checkpoint."""


class CheckpointStore:
    """The checkpoints of a run, in a folder or in a storage.

    A checkpoint is a folder `step_00001200` with, for each rank, its tensors (safetensors) and the rest of its
    state (JSON), and a manifest with the size and checksum of every file. On a disk it is written under another name
    and renamed when it is complete; elsewhere its manifest is written last. The files `last` and `best`, and others
    that a user names, hold the name of one.

    Args:
        place: Where the checkpoints are: a folder, or a storage with nothing else in it. The folder of a run that is
            kept elsewhere stands for the place where it is kept.
        policy: Which of them are kept.
        rank: This rank; the first one commits.
        size: How many ranks write.
        may_live: Tells of a rank whether it may still write its part, or is known to have died.
    """

    def __init__(
        self,
        place: Path | Storage,
        policy: Policy,
        *,
        rank: int = 0,
        size: int = 1,
        may_live: Callable[[int], bool] | None = None,
    ) -> None:
        self.policy = policy
        self._mirror: RunMirror | None = None
        if isinstance(place, Path):
            self._mirror = find_mirror(place.parent)
            place = LocalStorage(place) if self._mirror is None else Within(self._mirror.storage, place.name)
        self.storage: Storage = place
        self._layout: Layout = FolderLayout(place) if isinstance(place, LocalStorage) else ObjectLayout(place)
        self._rank, self._size = rank, size
        self._may_live = may_live
        self._deadline = math.inf
        self._damaged: set[int] = set()
        self._unchanged = Unchanged()

    def __str__(self) -> str:
        return self.storage.url

    @property
    def folder(self) -> Path:
        """The folder that the checkpoints lie in.

        Raises:
            ConfigError: They are in none of this machine.
        """
        return self._folders().folder

    def _folders(self) -> FolderLayout:
        if isinstance(self._layout, FolderLayout):
            return self._layout
        raise ConfigError(
            f"the checkpoints in {self} are in no folder of this machine; copy the run: treadle fetch URL FOLDER"
        )

    # Writing ----------------------------------------------------------------------------------------------

    def write(
        self,
        step: int,
        structure: Any,
        tensors: dict[str, Tensor],
        facts: dict[str, Any],
        attempt: str,
        number: int = 0,
        frozen: Collection[str] = (),
    ) -> None:
        """Write this rank's part of the checkpoint at `step`; the first rank commits it when all parts are there.

        Args:
            step: The step it is of.
            structure: What JSON can hold of the state.
            tensors: The tensors of the state, on the host.
            facts: What the manifest says besides: epoch, metrics, number of ranks.
            attempt: A word that all ranks share and no earlier run used, to tell leftovers from parts.
            number: Which save of the attempt it is: one rank may be a save ahead of another, of the same step even.
            frozen: The names of tensors that nothing trains.

        Raises:
            CheckpointError: A file could not be written; nothing half-done is left where a reader looks.
        """
        part = self._layout.part(step, attempt, number)
        try:
            with self._layout.filling(part) as folder:
                division = self._unchanged.divide(self._rank, part, tensors, frozen)
                shared = self._write_part(folder, structure, division)
                entry = describe_files(folder, self._rank) | {file.name: file.entry for file in shared}
            self._layout.announce(part, self._rank, entry)
            self._unchanged.written(shared)
            if self._rank == 0:
                self._commit(part, step, facts)
                self._prune()
                if self._size > 1:
                    self._layout.clear_parts_before(attempt, number, step)
        except (OSError, ValueError, SafetensorError, StorageError) as error:
            self._layout.give_up(part, self._rank)
            raise CheckpointError(f"cannot write the checkpoint of step {step} into {self}: {error}") from error

    def pass_over(self, step: int, attempt: str, number: int) -> None:
        """Say that this rank has no part of a checkpoint that the others write; the first one must not wait for it."""
        part = self._layout.part(step, attempt, number)
        with suppress(OSError, StorageError), self._layout.filling(part):
            pass
        self._layout.give_up(part, self._rank)

    def _write_part(self, folder: Path, structure: Any, division: Division) -> list[SharedFile]:
        """Write the files of a save, and return those of them that other checkpoints may share."""
        tensor_file = folder / file_names(self._rank)[0]
        _write_tensors(tensor_file, division.main, header([file for file, _ in division.shared]))
        structure_file = self._write_structure(folder, json.dumps(structure))
        sync_file(tensor_file)
        sync_file(structure_file)
        shared = []
        for file, tensors in division.shared:
            path = folder / file.name
            if not (file.entry and self._layout.share(file.name, file.entry["size"], folder)):
                _write_tensors(path, tensors, shared_header(file))
                sync_file(path)
                file = replace(file, entry=describe_file(path))
            shared.append(file)
        return shared

    def _write_structure(self, folder: Path, text: str) -> Path:
        """Write what JSON holds of the state, deflated where it is long; return the file."""
        packed = deflated(text) if len(text) >= LEAST_BYTES else None
        path = folder / (file_names(self._rank)[1] if packed is None else deflated_name(self._rank))
        if packed is None:
            path.write_text(text, encoding="utf-8")
        else:
            path.write_bytes(packed)
        return path

    def _commit(self, part: str, step: int, facts: dict[str, Any]) -> None:
        files: dict[str, Any] = {}
        for rank in range(self._size):
            files |= self._wait_for_entry(part, rank)
        if self._mirror is not None:
            # What the checkpoint counts on, such as the lines of metrics, is there before it.
            self._mirror.push()
        clear = self._layout.commit(part, step, {"step": step, **facts, "ranks": self._size, "files": files})
        for name in ("last", *(["best"] if facts.get("best") else []), *facts.get("names", ())):
            self._layout.write_pointer(name, step)
        clear()

    def _wait_for_entry(self, part: str, rank: int) -> dict[str, Any]:
        """Wait until another rank's part is there; the ranks share a storage, not a collective, in this thread."""
        deadline = time.monotonic() + PATIENCE
        while (entry := self._layout.announced(part, rank)) is None:
            if self._layout.has_given_up(part, rank):
                raise OSError(f"rank {rank} could not write its part")
            dead = self._may_live is not None and not self._may_live(rank)
            if dead and (entry := self._layout.announced(part, rank)) is None:
                raise OSError(f"rank {rank} died before it had written its part")
            if entry is not None:
                break
            if time.monotonic() > min(deadline, self._deadline):
                raise OSError(f"rank {rank} wrote no part; did it die?")
            time.sleep(self._layout.pause)
        return entry

    def abandon(self, patience: float) -> None:
        """Wait for other ranks no longer than this many seconds, in whatever is being written: the run is over."""
        self._deadline = time.monotonic() + patience

    # Removing ---------------------------------------------------------------------------------------------

    def _prune(self) -> None:
        """Remove what the policy does not keep; what cannot be removed is left for the next time."""
        try:
            pointed = {step for step in map(self.pointer, self.pointers()) if step is not None}
            steps = self.steps()
        except StorageError as error:
            # Without knowing what is pointed at, nothing is known to be old.
            logger.warning("no old checkpoint is removed this time: %s", error)
            return
        for step in sorted(set(steps) - self.policy.kept(steps, pointed_at=pointed)):
            try:
                self._layout.remove(step)
            except (OSError, StorageError) as error:
                logger.warning("cannot remove the old checkpoint %s: %s", self.address(step), error)
        self._layout.clear_removed()

    def clear_leftovers(self) -> None:
        """Remove what an earlier process left half written, and do what it left undone.

        Raises:
            CheckpointError: A pointer cannot be written.
        """
        self._layout.clear_leftovers()
        self._mend_pointers()

    def discard_after(self, step: int) -> None:
        """Remove every checkpoint above `step`: the run continues from there, and they are of another one.

        One that was found to be damaged is set aside under another name: somebody may know better, or mend it.

        Raises:
            CheckpointError: One cannot be removed.
        """
        for later in self.steps():
            if later > step:
                try:
                    if later in self._damaged:
                        self._layout.set_aside(later)
                        self._damaged.discard(later)
                    else:
                        self._layout.remove(later)
                except (OSError, StorageError) as error:
                    raise CheckpointError(
                        f"cannot go back to step {step}: {error}; remove {self.address(later)}"
                    ) from error
        self._mend_pointers()

    def _mend_pointers(self) -> None:
        """Let `last` and `best` name what they should; a kill may have come between a checkpoint and its pointers."""
        steps = self.steps()
        best = [step for step in (self.pointer("best"), *filter(self._was_best, steps)) if step is not None]
        try:
            for name, candidates in (("last", steps), ("best", best)):
                if not candidates:
                    self._layout.remove_pointer(name)
                elif self.pointer(name) != max(candidates):
                    self._layout.write_pointer(name, max(candidates))
        except OSError as error:
            raise CheckpointError(f"cannot write the pointers in {self}: {error}") from error

    def _was_best(self, step: int) -> bool:
        try:
            return bool(self.manifest(step).get("best"))
        except StorageError:
            raise
        except CheckpointError:
            return False

    # Finding and reading ----------------------------------------------------------------------------------

    def path(self, step: int) -> Path:
        """Return the folder of the checkpoint at `step`.

        Raises:
            ConfigError: It is in none of this machine.
        """
        return self._folders().path(step)

    def address(self, step: int) -> str:
        """Return what people call the checkpoint at `step`: its folder, or its URL."""
        return str(self._layout.reader(step))

    def has(self, step: int) -> bool:
        """Whether there is a checkpoint at `step`."""
        return self._layout.has(step)

    def steps(self) -> list[int]:
        """Return the steps that have a checkpoint, oldest first.

        Raises:
            StorageError: The folder cannot be read now.
        """
        return self._layout.steps()

    def pointer(self, name: str) -> int | None:
        """Return the step that `last` or `best` points at; None if it points nowhere.

        Raises:
            StorageError: It cannot be read now.
        """
        try:
            text = self._layout.read_pointer(name)
        except (OSError, UnicodeDecodeError):
            return None
        step = text.removeprefix(PREFIX)
        return int(step) if step.isdecimal() and len(step) < 20 and self._layout.has(int(step)) else None

    def pointers(self) -> list[str]:
        """Return the names of all pointers, whether they point at something or not."""
        return sorted(name for name, is_folder in self._layout.entries().items() if name[0] != "." and not is_folder)

    def point(self, name: str, step: int) -> None:
        """Let `name` point at the checkpoint of `step`, which is kept from then on.

        Raises:
            CheckpointError: The pointer cannot be written.
        """
        try:
            self._layout.write_pointer(name, step)
        except OSError as error:
            raise CheckpointError(f"cannot write {self.storage.address(name)}: {error}") from error

    def newest_good(self, *, before: int | None = None) -> int | None:
        """Return the newest step, below `before` if given, whose checkpoint is whole; damaged ones are reported.

        Raises:
            StorageError: One cannot be read now: it may be whole, and is not passed over.
        """
        for step in reversed(self.steps()):
            if before is not None and step >= before:
                continue
            try:
                self.manifest(step, verify=True)
            except StorageError:
                raise
            except CheckpointError as error:
                self._damaged.add(step)
                logger.warning("skipping a damaged checkpoint: %s", error)
                continue
            return step
        return None

    def manifest(self, step: int, *, verify: bool = False) -> dict[str, Any]:
        """Return what the manifest of a checkpoint says.

        Args:
            step: Its step.
            verify: Whether every file is compared with its size and checksum.

        Raises:
            CheckpointError: It is missing, damaged, of another step, or of a format this version does not know.
            StorageError: It cannot be read now.
        """
        reader = self._layout.reader(step)
        manifest = read_manifest(reader)
        if manifest.get("step") != step:
            raise CheckpointError(f"{reader} holds the checkpoint of step {manifest.get('step')}; it was renamed")
        for problem in damage(reader.files(), manifest) if verify else ():
            raise CheckpointError(f"{reader}: {problem}")
        return manifest

    def read(self, step: int, rank: int | None = None) -> Any:
        """Return the state of this rank, or of `rank`, in the checkpoint at `step`, which was verified before.

        The first rank's is all that ranks have in common, put together from what each of them wrote of it.

        Raises:
            CheckpointError: It cannot be read.
        """
        number = self._rank if rank is None else rank
        with self._reading(step) as files:
            structure, file = files.opened(number)
            if number == 0 and _is_sharded(structure):
                return materialised(self._read_common(files))
            return join(structure, LazyTensors(file) if _is_sharded(structure) else file.read_all())

    def share_from(self, step: int) -> None:
        """Let later checkpoints share what this rank wrote into the one at `step`, as long as it does not change.

        Raises:
            CheckpointError: It cannot be read.
        """
        with self._reading(step) as files:
            entries = self.manifest(step)["files"]
            if file_names(self._rank)[0] in entries:
                digests = files.opened(self._rank)[1].shared_digests()
                self._unchanged.resume([SharedFile(name, found, entries[name]) for name, found in digests.items()])

    def read_weights(self, step: int) -> dict[str, Any]:
        """Return the weights and buffers of the model in the checkpoint at `step`.

        Raises:
            CheckpointError: It cannot be read, or holds none.
        """
        state = self.read(step, rank=0)
        tracked = state.get("tracked") if isinstance(state, dict) else None
        weights = tracked.get("model") if isinstance(tracked, dict) else None
        if not isinstance(weights, dict) or not weights:
            raise CheckpointError(
                f"{self.address(step)} holds no weights of a model; restore it, or take another checkpoint"
            )
        return weights

    def read_lazily(self, step: int) -> Any:
        """Return what ranks have in common, with every tensor as a `SavedTensor` of which parts can be read.

        Raises:
            CheckpointError: It cannot be read.
        """
        with self._reading(step) as files:
            return self._read_common(files)

    def _read_common(self, files: Reader) -> Any:
        structure, file = files.opened(0)
        parts: list[tuple[Any, PartFile]] = [(structure, file)]
        if _is_sharded(structure):
            parts += [files.opened(rank) for rank in range(1, int(structure["processes"]))]
        return merged([join(structure, LazyTensors(file)) for structure, file in parts])

    @contextmanager
    def _reading(self, step: int) -> Iterator[Reader]:
        reader = self._layout.reader(step)
        try:
            yield reader.files()
        except (OSError, ValueError, SafetensorError, RecursionError) as error:
            raise CheckpointError(f"{reader} cannot be read: {error}") from error


def _write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None) -> None:
    save_file(tensors, path, metadata=metadata)
    give_plain_mode(path)


def _is_sharded(structure: Any) -> bool:
    """Whether a state says of itself that other ranks wrote parts of what they have in common."""
    return isinstance(structure, dict) and bool(structure.get("sharded"))
