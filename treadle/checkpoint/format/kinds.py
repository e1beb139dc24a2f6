"""The three things that a trainer saves, and which verb loads which: who mixes them up is told."""

import os
from pathlib import Path
from typing import Any

from treadle.checkpoint.format.file import read_file
from treadle.checkpoint.format.manifest import MANIFEST
from treadle.errors import CheckpointError

STATE = "state.safetensors"
"""The file of the first process in the folder of a training state."""
PLAIN_FOLDER = "a folder"
GO_ON = "to resume that run, build the trainer with run_dir= and call train(resume='auto')"


def read_checkpoint(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what `save_checkpoint` wrote.

    Raises:
        CheckpointError: It is something else; the message says what, and how that is loaded.
    """
    place = Path(path)
    if place.is_dir():
        raise CheckpointError(f"load_checkpoint takes a file, and {place} is {_folder_in_words(place)}")
    state = read_file(place)
    if isinstance(state, dict) and isinstance(state.get("model_state_dict"), dict):
        return state
    if isinstance(state, dict) and "run" in state:
        raise CheckpointError(
            f"{place} is a training state, not a checkpoint of weights; pass its folder, {place.parent}, to "
            "train(resume_from=...) or load_training_state"
        )
    raise CheckpointError(f"{place} holds no weights of a model (model_state_dict); was it written by save_checkpoint?")


def read_training_state(folder: str | os.PathLike[str], name: str) -> dict[str, Any]:
    """Return what `save_training_state` wrote into a folder for one process.

    Args:
        folder: The folder.
        name: The name of the process's file.

    Raises:
        CheckpointError: It is something else; the message says what, and how that is loaded.
    """
    place = Path(folder)
    if place.is_file():
        raise CheckpointError(
            f"{place} is a file, and a training state is a folder; load_checkpoint loads the weights of a file, "
            f"and for a {STATE} pass the folder it is in"
        )
    if place.is_dir() and not (place / STATE).is_file():
        what = _folder_in_words(place)
        remedy = "; pass the folder that save_training_state wrote" if what == PLAIN_FOLDER else ""
        raise CheckpointError(f"there is no training state ({STATE}) in {place}, which is {what}{remedy}")
    state = read_file(place / name)
    if isinstance(state, dict) and {"run", "kwargs"} <= state.keys() and isinstance(state["run"], dict):
        return state
    if isinstance(state, dict) and "model_state_dict" in state:
        raise CheckpointError(f"{place / name} is a checkpoint of weights, no training state; use load_checkpoint")
    raise CheckpointError(f"{place / name} holds no training state; was it written by save_training_state?")


def _folder_in_words(place: Path) -> str:
    if (place / MANIFEST).is_file() and place.name.startswith("step_"):
        return f"a checkpoint of the run in {place.parent.parent}; {GO_ON}"
    if (place / "checkpoints").is_dir():
        return f"the folder of a run; {GO_ON}"
    if (place / STATE).is_file():
        return "a training state; pass it to train(resume_from=...) or load_training_state"
    return PLAIN_FOLDER
