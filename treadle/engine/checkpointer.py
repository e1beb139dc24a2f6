"""What saves and loads: the checkpoints of a run by their names, and weights from anywhere."""

import logging
import os
import re
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import nn

from treadle.checkpoint import CheckpointStore, Policy, write_file
from treadle.checkpoint.format.manifest import MANIFEST
from treadle.checkpoint.importers.weights import import_weights, weights_in
from treadle.checkpoint.model_state import plain_state_dict
from treadle.checkpoint.saver import wait_for_writer
from treadle.checkpoint.tracked import Stateful, explaining_mismatch
from treadle.engine import dist
from treadle.engine.core import COMPLETE
from treadle.engine.trainers.base import TrainerBase
from treadle.errors import CheckpointError, ConfigError, did_you_mean
from treadle.files.atomic_io import replace_text
from treadle.runs.place import require_folder

logger = logging.getLogger(__name__)

TAKEN = ("last", COMPLETE)
LAST = "last_checkpoint"
"""The file that names what was last saved without a trainer."""

FILE = ".safetensors"
PICKLES = (".pt", ".pth", ".bin")
OPTIONS = ("trainer", "max_to_keep", "save_to_disk")
_PERIODIC = re.compile(r".*_(\d{7,})")
NEEDS_FOLDER = "a run of the engine is kept in one: train into a folder, or with treadle.Trainer(run_dir=URL)"


class Checkpointer:
    """Saves the run of a trainer under names, finds its newest checkpoint, and loads weights.

    Checkpoints lie in `save_dir/checkpoints`, one folder for each iteration that was saved; a name points at one.
    A trainer that has no folder of its own trains in `save_dir`.

    Without a trainer, for a loop of your own, the weights and the states of `checkpointables` are saved, as
    `save_dir/name.safetensors`.

    Args:
        model: Whose weights to load.
        save_dir: The folder of the run.
        trainer: The trainer whose run is saved.
        max_to_keep: How many periodic checkpoints are kept; None keeps all.
        save_to_disk: Whether this process writes, where there is no trainer; by default the first one does.
        checkpointables: What else to save and load, by name: anything with `state_dict` and `load_state_dict`.

    Raises:
        ConfigError: One of these cannot be saved, or the trainer trains in another folder.
    """

    def __init__(
        self,
        model: nn.Module,
        save_dir: str | os.PathLike[str] = "",
        *,
        trainer: Any = None,
        max_to_keep: int | None = None,
        save_to_disk: bool | None = None,
        **checkpointables: Any,
    ) -> None:
        self.model = model
        require_folder(save_dir, NEEDS_FOLDER)
        self.save_dir = Path(save_dir)
        self.has_folder = bool(os.fspath(save_dir))
        self.max_to_keep = max_to_keep
        self._periodic: dict[Path, None] = {}
        self._writes = dist.is_main_process() if save_to_disk is None else save_to_disk
        runs = isinstance(trainer, TrainerBase)
        # Any other trainer is saved for what its state_dict says.
        self.checkpointables = {**checkpointables, **({} if trainer is None or runs else {"trainer": trainer})}
        self._check_checkpointables()
        self._trainer = weakref.ref(trainer) if runs else None
        if runs:
            trainer.save_with(self)

    def _check_checkpointables(self) -> None:
        for name, value in self.checkpointables.items():
            if not isinstance(value, Stateful):
                near = did_you_mean(name, OPTIONS) or "; give what has both, such as an optimizer"
                raise ConfigError(
                    f"Checkpointer({name}={value!r}): a {type(value).__name__} has no state_dict and load_state_dict"
                    f"{near}"
                )

    @property
    def max_to_keep(self) -> int | None:
        """How many periodic checkpoints are kept; None keeps all."""
        return self._max_to_keep

    @max_to_keep.setter
    def max_to_keep(self, value: int | None) -> None:
        """Keep another number of them from now on.

        Raises:
            ConfigError: It is no whole number from 1 up.
        """
        if value is not None and (type(value) is not int or value < 1):
            raise ConfigError(f"max_to_keep={value!r} must be a whole number from 1 up, or None to keep all")
        self._max_to_keep = value

    @property
    def store(self) -> CheckpointStore:
        """The checkpoints of the run on disk, with what a run that was interrupted here is still writing."""
        store = CheckpointStore(self.save_dir / "checkpoints", Policy(keep_last=None))
        wait_for_writer(store)
        return store

    # Saving -------------------------------------------------------------------------------------------------

    def save(self, name: str, *, best: bool = False, **facts: Any) -> None:
        """Save the run as it is after the current iteration, all of it, under `name`; every process must come here.

        Args:
            name: What to find it by; a periodic checkpoint is pruned with its name when there are too many.
            best: Whether it is the best so far.
            facts: Plain data for `load` to return, where there is no trainer: `iteration=5`.

        Raises:
            ConfigError: The name cannot be used, there is no folder, or a trainer knows the facts itself.
        """
        self._check_name(name)
        if not self.has_folder:
            raise ConfigError(f"checkpointer.save({name!r}): there is no folder; give Checkpointer(model, save_dir)")
        trainer = None if self._trainer is None else self._trainer()
        if trainer is None or not trainer.has_begun:
            self._save_file(name, facts)
            return
        if facts:
            raise ConfigError(
                f"checkpointer.save({name!r}, {next(iter(facts))}=...): the run of a trainer is saved with all that it "
                "knows; leave it out"
            )
        periodic = _PERIODIC.fullmatch(name) is not None
        trainer.core.save_as(None if periodic else name, best=best)

    def _save_file(self, name: str, facts: dict[str, Any]) -> None:
        if not self._writes:
            return
        self.save_dir.mkdir(parents=True, exist_ok=True)
        states = {key: value.state_dict() for key, value in self.checkpointables.items()}
        tree = {"model_state_dict": plain_state_dict(self.model), "checkpointables": states, "facts": facts}
        write_file(self.save_dir / f"{name}{FILE}", tree)
        replace_text(self.save_dir / LAST, f"{name}{FILE}")
        if _PERIODIC.fullmatch(name):
            self._keep_newest(self.save_dir / f"{name}{FILE}")

    def _keep_newest(self, file: Path) -> None:
        """Note a periodic file, and remove the oldest of this program's that are too many; others' files stay."""
        self._periodic.pop(file, None)
        self._periodic[file] = None
        for old in list(self._periodic)[: -self.max_to_keep] if self.max_to_keep else ():
            del self._periodic[old]
            old.unlink(missing_ok=True)

    def _check_name(self, name: str) -> None:
        if not re.fullmatch(r"[\w-][\w.-]*", name) or name.startswith("step_") or name in TAKEN:
            raise ConfigError(
                f"checkpointer.save({name!r}): use letters, digits, '_', '-' and '.', and none of {list(TAKEN)} "
                "nor a name that begins with 'step_'"
            )

    # Finding ------------------------------------------------------------------------------------------------

    def has_checkpoint(self) -> bool:
        """Whether the run has a checkpoint."""
        return bool(self.store.steps()) or self._last_file() is not None

    def get_checkpoint_file(self) -> str:
        """Return the newest checkpoint that is whole, a folder or a file; an empty string if there is none."""
        step = self.store.newest_good()
        return str(self._last_file() or "") if step is None else str(self.store.path(step))

    def _last_file(self) -> Path | None:
        """Return what was last saved without a trainer."""
        try:
            file = self.save_dir / (self.save_dir / LAST).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            return None
        return file if file.is_file() else None

    def iteration_to_resume(self) -> int | None:
        """Return the iteration that a resumed run begins with; None if there is no checkpoint."""
        return self.store.newest_good()

    def is_complete(self) -> bool:
        """Whether the newest checkpoint is the end of a run, with nothing left to do."""
        steps = self.store.steps()
        return bool(steps) and self.store.pointer(COMPLETE) == steps[-1]

    # Loading ------------------------------------------------------------------------------------------------

    def load(
        self, path: str | os.PathLike[str], checkpointables: Iterable[str] | None = None, *, strict: bool = True
    ) -> dict[str, Any]:
        """Load weights into the model; return what is known of where they come from.

        The state of a trainer's run is not loaded, but taken up when it trains, after `resume_or_load`.

        Args:
            path: A run's folder, one of its checkpoints, or a file of weights; a name that was given to `save`, of this
                run, or with the folder of another one before it.
            checkpointables: Which of the checkpointer's other things are loaded, if the file has them; None for all.
            strict: Whether names and shapes must be the same; otherwise what fits is loaded and the rest said.

        Raises:
            CheckpointError: There are no weights, or they do not fit.
        """
        source, weights, facts, states = self._read(path)
        load_weights(self.model, weights, where=str(source), strict=strict)
        logger.info("loaded the weights in %s", source)
        self._load_states(source, states, self.checkpointables if checkpointables is None else checkpointables)
        return facts

    def _load_states(self, source: Path, states: dict[str, Any], wanted: Iterable[str]) -> None:
        if self._trainer is not None:
            return
        for name in wanted:
            if name not in self.checkpointables:
                near = did_you_mean(name, self.checkpointables) or f"; it has {list(self.checkpointables)}"
                raise ConfigError(f"checkpointer.load(checkpointables=[{name!r}]): there is no {name!r}{near}")
            if name in states:
                with explaining_mismatch(f"the state of {name!r} in {source}"):
                    self.checkpointables[name].load_state_dict(states[name])
            else:
                logger.warning("%s holds no state of %s, which stays as it is", source, name)

    def resume_or_load(self, path: str = "", *, resume: bool = True, strict: bool = True) -> dict[str, Any]:
        """Load the newest checkpoint if `resume` and there is one, else the weights at `path`, if it is given.

        A trainer resumes from the newest checkpoint then: its `iter` is the last one that was done.
        """
        newest = self.get_checkpoint_file() if resume else ""
        if not newest:
            return self.load(path, (), strict=strict) if path else {}
        trainer = None if self._trainer is None else self._trainer()
        if trainer is not None:
            trainer.iter = (self.iteration_to_resume() or 0) - 1
        return self.load(newest)

    def _read(self, path: str | os.PathLike[str]) -> tuple[Path, dict[str, Any], dict[str, Any], dict[str, Any]]:
        place = self._place(Path(path))
        if place.is_dir():
            folder = newest_in(place)
            step = int(folder.name.split("_")[1].split(".")[0])
            store = CheckpointStore(folder.parent, Policy())
            facts = store.manifest(step, verify=True)
            return folder, store.read_weights(step), {"iteration": step - 1, "epoch": facts.get("epoch")}, {}
        state = import_weights(place)
        return place, weights_in(state), state.get("facts") or {}, state.get("checkpointables") or {}

    def _place(self, path: Path) -> Path:
        """Return what `path` leads to: what is there under it, or what was saved under that name.

        Raises:
            CheckpointError: There is no such thing.
        """
        if path.exists():
            return path
        name = path.name.removesuffix(path.suffix) if path.suffix in (FILE, *PICKLES) else path.name
        # A bare name is one of this run's; otherwise what comes before it is a run's folder.
        folder = self.save_dir if path.name == os.fspath(path) else path.parent
        file, store = folder / f"{name}{FILE}", CheckpointStore(folder / "checkpoints", Policy(keep_last=None))
        if file.is_file():
            return file
        periodic = _PERIODIC.fullmatch(name)
        step = store.pointer(name) if periodic is None else int(periodic[1]) + 1
        if step is not None and store.path(step).is_dir():
            return store.path(step)
        if not folder.is_dir():
            raise CheckpointError(f"there is no checkpoint {path}; there is no folder {folder}")
        names = [*store.pointers(), *(found.name.removesuffix(FILE) for found in sorted(folder.glob(f"*{FILE}")))]
        near = did_you_mean(name, names) or (f"; it has {names}" if names else "")
        raise CheckpointError(f"there is no checkpoint {path}: {folder} has none of that name{near}")


def newest_in(folder: Path) -> Path:
    """Return the checkpoint that a folder is, or the newest of those in it.

    Raises:
        CheckpointError: There is none.
    """
    if (folder / MANIFEST).is_file() and folder.name.startswith("step_"):
        return folder
    for place in (folder / "checkpoints", folder):
        store = CheckpointStore(place, Policy())
        step = store.newest_good()
        if step is not None:
            return store.path(step)
    raise CheckpointError(f"{folder} holds no checkpoint; give the folder of a run, or of one of its checkpoints")


def load_weights(model: nn.Module, weights: dict[str, Any], *, where: str, strict: bool) -> None:
    """Load `weights` into `model`.

    Raises:
        CheckpointError: `strict`, and names or shapes differ; the message has them in groups.
    """
    weights = {name.replace("_orig_mod.", ""): value for name, value in weights.items()}
    own = {name.replace("_orig_mod.", ""): (name, value) for name, value in model.state_dict().items()}
    groups = {
        "missing": sorted(set(own) - set(weights)),
        "unexpected": sorted(set(weights) - set(own)),
        "of another shape": [
            f"{name} {tuple(weights[name].shape)} instead of {tuple(own[name][1].shape)}"
            for name in sorted(set(own) & set(weights))
            if weights[name].shape != own[name][1].shape
        ],
    }
    problems = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in groups.items() if names)
    if problems and strict:
        raise CheckpointError(f"{where} does not fit {type(model).__name__}: {problems}; strict=False loads the rest")
    if problems:
        logger.warning("%s does not fit %s, the rest is loaded: %s", where, type(model).__name__, problems)
    fitting = {
        own[name][0]: value for name, value in weights.items() if name in own and value.shape == own[name][1].shape
    }
    model.load_state_dict(fitting, strict=False)
