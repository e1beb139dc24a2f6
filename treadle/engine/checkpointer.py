"""What saves and loads: the checkpoints of a run by their names, and weights from anywhere."""

import logging
import os
import re
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from treadle._saving import plain_state_dict
from treadle.checkpoint import CheckpointStore, Policy, write_file
from treadle.checkpoint.importing import import_weights, weights_in
from treadle.checkpoint.manifest import MANIFEST
from treadle.engine._adapter import COMPLETE
from treadle.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from treadle.engine.trainer_base import TrainerBase

logger = logging.getLogger(__name__)

TAKEN = ("last", COMPLETE)


class Checkpointer:
    """Saves the run of a trainer under names, finds its newest checkpoint, and loads weights.

    Checkpoints lie in `save_dir/checkpoints`, one folder for each iteration that was saved; a name points at one.
    Without a trainer, weights alone are saved, as `save_dir/name.safetensors`.

    Args:
        model: Whose weights to load.
        save_dir: The folder of the run.
        trainer: The trainer whose run is saved.
        max_to_keep: How many periodic checkpoints are kept; None keeps all.
    """

    def __init__(
        self,
        model: nn.Module,
        save_dir: str | os.PathLike[str] = "",
        *,
        trainer: "TrainerBase | None" = None,
        max_to_keep: int | None = None,
    ) -> None:
        self.model = model
        self.save_dir = Path(save_dir)
        self.max_to_keep = max_to_keep
        self._trainer = None if trainer is None else weakref.ref(trainer)

    @property
    def store(self) -> CheckpointStore:
        """The checkpoints of the run on disk."""
        return CheckpointStore(self.save_dir / "checkpoints", Policy(keep_last=None))

    # Saving -------------------------------------------------------------------------------------------------

    def save(self, name: str, *, best: bool = False) -> None:
        """Save the run as it is after the current iteration, all of it, under `name`; every process must come here.

        Args:
            name: What to find it by; a periodic checkpoint is pruned with its name when there are too many.
            best: Whether it is the best so far.
        """
        self._check_name(name)
        trainer = None if self._trainer is None else self._trainer()
        if trainer is None or trainer._core is None:
            self.save_dir.mkdir(parents=True, exist_ok=True)
            write_file(self.save_dir / f"{name}.safetensors", {"model_state_dict": plain_state_dict(self.model)})
            return
        periodic = re.fullmatch(r".*_\d{7,}", name) is not None
        trainer.core.save_as(None if periodic else name, best=best)

    def _check_name(self, name: str) -> None:
        if not re.fullmatch(r"[\w-][\w.-]*", name) or name.startswith("step_") or name in TAKEN:
            raise ConfigError(
                f"checkpointer.save({name!r}): use letters, digits, '_', '-' and '.', and none of {list(TAKEN)} "
                "nor a name that begins with 'step_'"
            )

    # Finding ------------------------------------------------------------------------------------------------

    def has_checkpoint(self) -> bool:
        """Whether the run has a checkpoint."""
        return bool(self.store.steps())

    def get_checkpoint_file(self) -> str:
        """Return the folder of the newest checkpoint that is whole; an empty string if there is none."""
        step = self.store.newest_good()
        return "" if step is None else str(self.store.path(step))

    def iteration_to_resume(self) -> int | None:
        """Return the iteration that a resumed run begins with; None if there is no checkpoint."""
        return self.store.newest_good()

    def is_complete(self) -> bool:
        """Whether the newest checkpoint is the end of a run, with nothing left to do."""
        steps = self.store.steps()
        return bool(steps) and self.store.pointer(COMPLETE) == steps[-1]

    # Loading ------------------------------------------------------------------------------------------------

    def load(self, path: str | os.PathLike[str], *, strict: bool = True) -> dict[str, Any]:
        """Load weights into the model, and nothing else; return what is known of where they come from.

        Args:
            path: A run's folder, one of its checkpoints, the name of one of this run's, or a file of weights.
            strict: Whether names and shapes must be the same; otherwise what fits is loaded and the rest said.

        Raises:
            CheckpointError: There are no weights, or they do not fit.
        """
        source, weights, facts = self._read(path)
        load_weights(self.model, weights, where=str(source), strict=strict)
        logger.info("loaded the weights in %s", source)
        return facts

    def resume_or_load(self, path: str = "", *, resume: bool = True, strict: bool = True) -> dict[str, Any]:
        """Load the newest checkpoint if `resume` and there is one, else the weights at `path`, if it is given."""
        newest = self.get_checkpoint_file() if resume else ""
        if newest:
            return self.load(newest)
        return self.load(path, strict=strict) if path else {}

    def _read(self, path: str | os.PathLike[str]) -> tuple[Path, dict[str, Any], dict[str, Any]]:
        place = Path(path)
        if not place.exists() and self.store.pointer(os.fspath(path)) is not None:
            place = self.store.path(self.store.pointer(os.fspath(path)) or 0)
        if place.is_dir():
            folder = newest_in(place)
            step = int(folder.name.split("_")[1].split(".")[0])
            store = CheckpointStore(folder.parent, Policy())
            facts = store.manifest(step, verify=True)
            tracked = store.read(step, rank=0)["tracked"]
            return folder, tracked["model"], {"iteration": step - 1, "epoch": facts["epoch"]}
        return place, weights_in(import_weights(place)), {}


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
