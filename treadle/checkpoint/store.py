"""The checkpoints of a run on disk: each complete or absent, checked when read, the newest good one found."""

import json
import logging
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from treadle.checkpoint.durable import checksum, replace_text, sync_file
from treadle.checkpoint.policy import Policy
from treadle.checkpoint.tree import join
from treadle.errors import CheckpointError

logger = logging.getLogger(__name__)

FORMAT = "treadle-checkpoint-1"
MANIFEST = "manifest.json"
PREFIX = "step_"
PART = ".part_"


class CheckpointStore:
    """A folder of checkpoints.

    A checkpoint is a folder `step_00001200` with, for each rank, its tensors (safetensors) and the rest of its
    state (JSON), and a manifest with the size and checksum of every file. It is written under another name and
    renamed when it is complete. The files `last` and `best` hold the name of one.

    Args:
        folder: Where the checkpoints lie.
        policy: Which of them are kept.
        rank: This rank; the first one commits.
        size: How many ranks write.
    """

    def __init__(self, folder: Path, policy: Policy, *, rank: int = 0, size: int = 1) -> None:
        self.folder = folder
        self.policy = policy
        self._rank, self._size = rank, size

    def write(self, step: int, structure: Any, tensors: dict[str, Tensor], facts: dict[str, Any], attempt: str) -> None:
        """Write this rank's part of the checkpoint at `step`; the first rank commits it when all parts are there.

        Args:
            step: The step it is of.
            structure: What JSON can hold of the state.
            tensors: The tensors of the state, on the host.
            facts: What the manifest says besides: epoch, metrics, number of ranks.
            attempt: A word that all ranks share and no earlier run used, to tell leftovers from parts.

        Raises:
            CheckpointError: A file could not be written; nothing half-done is left where a reader looks.
        """
        part = self.folder / f"{PART}{attempt}_{step:08d}"
        try:
            part.mkdir(parents=True, exist_ok=True)
            self._write_part(part, structure, tensors)
            if self._rank == 0:
                self._commit(part, step, facts)
        except (OSError, SafetensorError) as error:
            if self._rank == 0:
                shutil.rmtree(part, ignore_errors=True)
            raise CheckpointError(f"cannot write the checkpoint of step {step} into {self.folder}: {error}") from error

    def _write_part(self, part: Path, structure: Any, tensors: dict[str, Tensor]) -> None:
        names = _file_names(self._rank)
        save_file(tensors, part / names[0])
        (part / names[1]).write_text(json.dumps(structure), encoding="utf-8")
        for name in names:
            sync_file(part / name)
        entries = {name: {"size": (part / name).stat().st_size, "crc32": checksum(part / name)} for name in names}
        # The other ranks' entries are how the first one knows that their files are complete.
        replace_text(part / f"rank_{self._rank}.done", json.dumps(entries))

    def _commit(self, part: Path, step: int, facts: dict[str, Any]) -> None:
        files: dict[str, Any] = {}
        for rank in range(self._size):
            done = part / f"rank_{rank}.done"
            _wait_for(done)
            files |= json.loads(done.read_text(encoding="utf-8"))
            done.unlink()
        manifest = {"format": FORMAT, "step": step, **facts, "files": files}
        replace_text(part / MANIFEST, json.dumps(manifest, indent=1))
        sync_file(part)
        target = self.path(step)
        if target.exists():
            # The same step again, after a return to an earlier one: the old folder gives way.
            target.rename(self._hidden(target))
        os.replace(part, target)
        sync_file(self.folder)
        replace_text(self.folder / "last", target.name)
        if facts.get("best"):
            replace_text(self.folder / "best", target.name)
        self._prune()

    def _prune(self) -> None:
        """Remove what the policy does not keep; what cannot be removed is left for the next time."""
        pointed = {step for step in (self.pointer("last"), self.pointer("best")) if step is not None}
        keep = self.policy.kept(self.steps(), pointed_at=pointed)
        doomed = [self.path(step) for step in self.steps() if step not in keep]
        doomed += self.folder.glob(f"{PART}old_*")
        for path in doomed:
            try:
                # First out of sight, so that a kill in the middle leaves no half checkpoint with a good name.
                if not path.name.startswith(PART):
                    path = path.rename(self._hidden(path))
                shutil.rmtree(path)
            except OSError as error:
                logger.warning("cannot remove the old checkpoint %s: %s", path, error)

    def _hidden(self, path: Path) -> Path:
        return self.folder / f"{PART}old_{path.name}_{time.time_ns()}"

    def clear_leftovers(self) -> None:
        """Remove what an earlier process left half written."""
        for path in self.folder.glob(f"{PART}*"):
            shutil.rmtree(path, ignore_errors=True)

    def discard_after(self, step: int) -> None:
        """Remove every checkpoint above `step`: the run goes on from there, and they are of another one."""
        for later in self.steps():
            if later > step:
                shutil.rmtree(self.path(later).rename(self._hidden(self.path(later))), ignore_errors=True)

    def path(self, step: int) -> Path:
        """Return the folder of the checkpoint at `step`."""
        return self.folder / f"{PREFIX}{step:08d}"

    def steps(self) -> list[int]:
        """Return the steps that have a checkpoint, oldest first."""
        names = [path.name.removeprefix(PREFIX) for path in self.folder.glob(f"{PREFIX}*")]
        return sorted(int(name) for name in names if name.isdigit())

    def pointer(self, name: str) -> int | None:
        """Return the step that `last` or `best` points at; None if it points nowhere."""
        try:
            text = (self.folder / name).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            return None
        step = text.removeprefix(PREFIX)
        return int(step) if step.isdigit() and self.path(int(step)).is_dir() else None

    def newest_good(self, *, before: int | None = None) -> int | None:
        """Return the newest step, below `before` if given, whose checkpoint is whole; damaged ones are reported."""
        for step in reversed(self.steps()):
            if before is not None and step >= before:
                continue
            try:
                self.manifest(step, verify=True)
            except CheckpointError as error:
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
            CheckpointError: It is missing, damaged, or of a format this version does not know.
        """
        path = self.path(step)
        try:
            manifest: dict[str, Any] = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
            kind = manifest["format"]
            files = manifest["files"].items()
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path} has no readable manifest: {error}") from error
        if kind != FORMAT:
            raise CheckpointError(f"{path} has the format {kind!r}; this version reads {FORMAT!r}")
        for problem in _damage(path, files) if verify else ():
            raise CheckpointError(f"{path}: {problem}")
        return manifest

    def read(self, step: int, rank: int | None = None) -> Any:
        """Return the state of this rank, or of `rank`, in the checkpoint at `step`, which was verified before.

        Raises:
            CheckpointError: It cannot be read.
        """
        path = self.path(step)
        tensor_file, structure_file = _file_names(self._rank if rank is None else rank)
        try:
            with safe_open(path / tensor_file, framework="pt", device="cpu") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
            structure = json.loads((path / structure_file).read_text(encoding="utf-8"))
        except (OSError, ValueError, SafetensorError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error
        return join(structure, tensors)


def _file_names(rank: int) -> tuple[str, str]:
    return f"rank_{rank}.safetensors", f"rank_{rank}.json"


def _damage(path: Path, files: Any) -> Iterator[str]:
    try:
        for name, entry in files:
            file = path / Path(name).name
            if not file.is_file():
                yield f"{name} is missing"
            elif file.stat().st_size != entry["size"]:
                yield f"{name} has {file.stat().st_size} bytes instead of {entry['size']}"
            elif checksum(file) != entry["crc32"]:
                yield f"{name} is damaged: its checksum differs"
    except (OSError, KeyError, TypeError) as error:
        yield f"it cannot be checked: {error}"


def _wait_for(path: Path, timeout: float = 600.0) -> None:
    """Wait until another rank's part is there; the ranks share a file system, not a collective, in this thread."""
    deadline = time.monotonic() + timeout
    while not path.exists():
        if time.monotonic() > deadline:
            raise OSError(f"{path.name} was not written within {timeout:.0f} s; did its rank die?")
        time.sleep(0.005)
