"""The checkpoints of a run on disk: each complete or absent, checked when read, the newest good one found."""

import json
import logging
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from treadle.checkpoint.durable import (
    clear_parts,
    give_plain_mode,
    read_patiently,
    replace_text,
    sync_file,
    telling_absence,
)
from treadle.checkpoint.manifest import damage, describe_files, file_names, read_manifest, write_manifest
from treadle.checkpoint.pieces import PartFile, materialised, merged
from treadle.checkpoint.policy import Policy
from treadle.checkpoint.tree import LazyTensors, join
from treadle.errors import CheckpointError, StorageError

logger = logging.getLogger(__name__)

PREFIX = "step_"
REPLACED = ".replaced"
PART = ".part_"
SET_ASIDE = "damaged_"
PATIENCE = 600.0
"""Seconds that the first rank waits for another one's part of a checkpoint."""


class CheckpointStore:
    """A folder of checkpoints.

    A checkpoint is a folder `step_00001200` with, for each rank, its tensors (safetensors) and the rest of its
    state (JSON), and a manifest with the size and checksum of every file. It is written under another name and
    renamed when it is complete. The files `last` and `best`, and others that a user names, hold the name of one.

    Args:
        folder: Where the checkpoints lie.
        policy: Which of them are kept.
        rank: This rank; the first one commits.
        size: How many ranks write.
        may_live: Tells of a rank whether it may still write its part, or is known to have died.
    """

    def __init__(
        self,
        folder: Path,
        policy: Policy,
        *,
        rank: int = 0,
        size: int = 1,
        may_live: Callable[[int], bool] | None = None,
    ) -> None:
        self.folder = folder
        self.policy = policy
        self._rank, self._size = rank, size
        self._may_live = may_live
        self._deadline = math.inf
        self._damaged: set[int] = set()

    # Writing ----------------------------------------------------------------------------------------------

    def write(
        self,
        step: int,
        structure: Any,
        tensors: dict[str, Tensor],
        facts: dict[str, Any],
        attempt: str,
        number: int = 0,
    ) -> None:
        """Write this rank's part of the checkpoint at `step`; the first rank commits it when all parts are there.

        Args:
            step: The step it is of.
            structure: What JSON can hold of the state.
            tensors: The tensors of the state, on the host.
            facts: What the manifest says besides: epoch, metrics, number of ranks.
            attempt: A word that all ranks share and no earlier run used, to tell leftovers from parts.
            number: Which save of the attempt it is: one rank may be a save ahead of another, of the same step even.

        Raises:
            CheckpointError: A file could not be written; nothing half-done is left where a reader looks.
        """
        part = self._part(step, attempt, number)
        try:
            part.mkdir(parents=True, exist_ok=True)
            self._write_part(part, structure, tensors)
            if self._rank == 0:
                self._commit(part, step, facts)
                self._prune()
                self._clear_parts_before(attempt, number, step)
        except (OSError, ValueError, SafetensorError) as error:
            self._give_up(part)
            raise CheckpointError(f"cannot write the checkpoint of step {step} into {self.folder}: {error}") from error

    def _part(self, step: int, attempt: str, number: int) -> Path:
        return self.folder / f"{PART}{attempt}_{number:06d}_{step:08d}"

    def pass_over(self, step: int, attempt: str, number: int) -> None:
        """Say that this rank has no part of a checkpoint that the others write; the first one must not wait for it."""
        part = self._part(step, attempt, number)
        with suppress(OSError):
            part.mkdir(parents=True, exist_ok=True)
        self._give_up(part)

    def _write_part(self, part: Path, structure: Any, tensors: dict[str, Tensor]) -> None:
        tensor_file, structure_file = (part / name for name in file_names(self._rank))
        save_file(tensors, tensor_file)
        give_plain_mode(tensor_file)
        structure_file.write_text(json.dumps(structure), encoding="utf-8")
        sync_file(tensor_file)
        sync_file(structure_file)
        # The other ranks' entries are how the first one knows that their files are complete. Nothing comes after: it
        # may give the folder its name at once, and forces out what is in it.
        entry = part / f"{_done(self._rank)}.part"
        entry.write_text(json.dumps(describe_files(part, self._rank)), encoding="utf-8")
        os.replace(entry, part / _done(self._rank))

    def _give_up(self, part: Path) -> None:
        """Leave nothing of a part that cannot be written; the first rank must not wait for it."""
        if self._rank == 0:
            shutil.rmtree(part, ignore_errors=True)
            return
        with suppress(OSError):
            (part / _failed(self._rank)).touch()

    def _commit(self, part: Path, step: int, facts: dict[str, Any]) -> None:
        files: dict[str, Any] = {}
        for rank in range(self._size):
            self._wait_for(part, rank)
            files |= json.loads((part / _done(rank)).read_text(encoding="utf-8"))
            (part / _done(rank)).unlink()
        write_manifest(part, {"step": step, **facts, "ranks": self._size, "files": files})
        sync_file(part)
        target, replaced = self._names(step)
        if target.exists():
            # The same step again, after a return to an earlier one. Two folders cannot be swapped at once: the old
            # one stays where readers find it until the new one has its name.
            shutil.rmtree(replaced, ignore_errors=True)
            os.replace(target, replaced)
        os.replace(part, target)
        sync_file(self.folder)
        replace_text(self.folder / "last", target.name)
        for name in (*(["best"] if facts.get("best") else []), *facts.get("names", ())):
            replace_text(self.folder / name, target.name)
        shutil.rmtree(replaced, ignore_errors=True)

    def _wait_for(self, part: Path, rank: int) -> None:
        """Wait until another rank's part is there; the ranks share a file system, not a collective, in this thread."""
        deadline = time.monotonic() + PATIENCE
        while not (part / _done(rank)).exists():
            if (part / _failed(rank)).exists():
                raise OSError(f"rank {rank} could not write its part")
            dead = self._may_live is not None and not self._may_live(rank)
            if dead and not (part / _done(rank)).exists():
                raise OSError(f"rank {rank} died before it had written its part")
            if time.monotonic() > min(deadline, self._deadline):
                raise OSError(f"rank {rank} wrote no part; did it die?")
            time.sleep(0.005)

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
                self._remove(step)
            except OSError as error:
                logger.warning("cannot remove the old checkpoint %s: %s", self.path(step), error)
        for path in self.folder.glob(f"{PART}old_*"):
            shutil.rmtree(path, ignore_errors=True)

    def _clear_parts_before(self, attempt: str, number: int, step: int) -> None:
        """Remove parts that another rank wrote after the first one had given up; those of later saves are needed."""
        for path in self.folder.glob(f"{PART}{attempt}_*"):
            saved, of_step = path.name.removeprefix(f"{PART}{attempt}_").split("_")
            if (int(saved), int(of_step)) < (number, step):
                shutil.rmtree(path, ignore_errors=True)

    def _remove(self, step: int) -> None:
        """Remove a checkpoint; first out of sight, so that a kill leaves no half of one under a good name."""
        for path in reversed(self._names(step)):
            if path.exists():
                hidden = self.folder / f"{PART}old_{path.name}_{time.time_ns()}"
                os.replace(path, hidden)
                shutil.rmtree(hidden, ignore_errors=True)

    def clear_leftovers(self) -> None:
        """Remove what an earlier process left half written, and do what it left undone.

        Raises:
            CheckpointError: A pointer cannot be written.
        """
        replaced = [self._names(step)[1] for step in self.steps() if self._names(step)[0].exists()]
        for path in (*self.folder.glob(f"{PART}*"), *replaced):
            shutil.rmtree(path, ignore_errors=True)
        clear_parts(self.folder)
        self._mend_pointers()

    def discard_after(self, step: int) -> None:
        """Remove every checkpoint above `step`: the run goes on from there, and they are of another one.

        One that was found to be damaged is set aside under another name: somebody may know better, or mend it.

        Raises:
            CheckpointError: One cannot be removed.
        """
        for later in self.steps():
            if later > step:
                try:
                    if later in self._damaged:
                        self._set_aside(later)
                    else:
                        self._remove(later)
                except OSError as error:
                    raise CheckpointError(
                        f"cannot go back to step {step}: {error}; remove {self.path(later)}"
                    ) from error
        self._mend_pointers()

    def _set_aside(self, step: int) -> None:
        for path in self._names(step):
            if path.exists():
                aside = self.folder / f"{SET_ASIDE}{path.name}"
                number = 1
                while aside.exists():
                    number += 1
                    aside = self.folder / f"{SET_ASIDE}{path.name}_{number}"
                os.replace(path, aside)
                logger.warning("the damaged checkpoint of step %d is kept as %s; remove it when you like", step, aside)
        self._damaged.discard(step)

    def _mend_pointers(self) -> None:
        """Let `last` and `best` name what they should; a kill may have come between a checkpoint and its pointers."""
        steps = self.steps()
        best = [step for step in (self.pointer("best"), *filter(self._was_best, steps)) if step is not None]
        try:
            for name, candidates in (("last", steps), ("best", best)):
                if not candidates:
                    (self.folder / name).unlink(missing_ok=True)
                elif self.pointer(name) != max(candidates):
                    replace_text(self.folder / name, self._names(max(candidates))[0].name)
        except OSError as error:
            raise CheckpointError(f"cannot write the pointers in {self.folder}: {error}") from error

    def _was_best(self, step: int) -> bool:
        try:
            return bool(self.manifest(step).get("best"))
        except StorageError:
            raise
        except CheckpointError:
            return False

    # Finding and reading ----------------------------------------------------------------------------------

    def _names(self, step: int) -> tuple[Path, Path]:
        """Return the folder of the checkpoint at `step`, and where an older one gives way to a new one."""
        name = f"{PREFIX}{step:08d}"
        return self.folder / name, self.folder / (name + REPLACED)

    def path(self, step: int) -> Path:
        """Return the folder of the checkpoint at `step`."""
        target, replaced = self._names(step)
        return replaced if not target.exists() and replaced.exists() else target

    def steps(self) -> list[int]:
        """Return the steps that have a checkpoint, oldest first.

        Raises:
            StorageError: The folder cannot be read now.
        """
        folders = {name for name, is_folder in self._entries().items() if is_folder and name.startswith(PREFIX)}
        numbers = [name.removeprefix(PREFIX).removesuffix(REPLACED) for name in folders]
        steps = {int(number) for number in numbers if number.isdecimal()}
        return sorted(step for step in steps if folders & {path.name for path in self._names(step)})

    def _entries(self) -> dict[str, bool]:
        """Return the names of what lies in the folder, and whether each is a folder; nothing if it is not there."""

        def read() -> dict[str, bool]:
            with os.scandir(self.folder) as entries:
                return {entry.name: entry.is_dir() for entry in entries}

        try:
            with telling_absence(self.folder):
                return read_patiently(read)
        except OSError:
            return {}

    def pointer(self, name: str) -> int | None:
        """Return the step that `last` or `best` points at; None if it points nowhere.

        Raises:
            StorageError: It cannot be read now.
        """
        path = self.folder / name
        try:
            with telling_absence(path):
                text = read_patiently(lambda: path.read_text(encoding="utf-8")).strip()
        except (OSError, UnicodeDecodeError):
            return None
        step = text.removeprefix(PREFIX)
        return int(step) if step.isdecimal() and len(step) < 20 and self.path(int(step)).is_dir() else None

    def pointers(self) -> list[str]:
        """Return the names of all pointers, whether they point at something or not."""
        return sorted(name for name in self._entries() if not name.startswith(".") and (self.folder / name).is_file())

    def point(self, name: str, step: int) -> None:
        """Let `name` point at the checkpoint of `step`, which is kept from then on.

        Raises:
            CheckpointError: The pointer cannot be written.
        """
        try:
            replace_text(self.folder / name, self._names(step)[0].name)
        except OSError as error:
            raise CheckpointError(f"cannot write {self.folder / name}: {error}") from error

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
        path = self.path(step)
        manifest = read_manifest(path)
        if manifest.get("step") != step:
            raise CheckpointError(f"{path} holds the checkpoint of step {manifest.get('step')}; it was renamed")
        for problem in damage(path, manifest) if verify else ():
            raise CheckpointError(f"{path}: {problem}")
        return manifest

    def read(self, step: int, rank: int | None = None) -> Any:
        """Return the state of this rank, or of `rank`, in the checkpoint at `step`, which was verified before.

        The first rank's is all that ranks have in common, put together from what each of them wrote of it.

        Raises:
            CheckpointError: It cannot be read.
        """
        number = self._rank if rank is None else rank
        with self._reading(step) as path:
            structure, file = self._open_part(path, number)
            if number == 0 and _is_sharded(structure):
                return materialised(self._read_common(path))
            return join(structure, LazyTensors(file) if _is_sharded(structure) else file.read_all())

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
                f"{self.path(step)} holds no weights of a model; restore it, or take another checkpoint"
            )
        return weights

    def read_lazily(self, step: int) -> Any:
        """Return what ranks have in common, with every tensor as a `SavedTensor` of which parts can be read.

        Raises:
            CheckpointError: It cannot be read.
        """
        with self._reading(step) as path:
            return self._read_common(path)

    def _read_common(self, path: Path) -> Any:
        structure, file = self._open_part(path, 0)
        parts = [(structure, file)]
        if _is_sharded(structure):
            parts += [self._open_part(path, rank) for rank in range(1, int(structure["processes"]))]
        return merged([join(structure, LazyTensors(file)) for structure, file in parts])

    @staticmethod
    def _open_part(path: Path, rank: int) -> tuple[Any, PartFile]:
        tensor_file, structure_file = file_names(rank)
        return json.loads((path / structure_file).read_text(encoding="utf-8")), PartFile(path / tensor_file)

    @contextmanager
    def _reading(self, step: int) -> Iterator[Path]:
        path = self.path(step)
        try:
            yield path
        except (OSError, ValueError, SafetensorError, RecursionError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error


def _is_sharded(structure: Any) -> bool:
    """Whether a state says of itself that other ranks wrote parts of what they have in common."""
    return isinstance(structure, dict) and bool(structure.get("sharded"))


def _done(rank: int) -> str:
    return f"rank_{rank}.done"


def _failed(rank: int) -> str:
    return f"rank_{rank}.failed"
