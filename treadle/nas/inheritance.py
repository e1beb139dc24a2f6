"""Weights that outlive a trial: kept in a file, and handed on to trials with a similar network."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from treadle.checkpoint.file import read_file, write_file
from treadle.nas.decisions import Architecture
from treadle.search.evolution import distance
from treadle.search.history import Outcome


def weights_file(folder: Path, number: int) -> Path:
    """Return the file with the weights of a trial."""
    return folder / f"trial_{number:06d}.safetensors"


def keep_weights(model: nn.Module, path: Path) -> None:
    """Write the weights and buffers of a network; the file is complete or not there."""
    write_file(path, {"model": model.state_dict()})


def begin_with(model: nn.Module, path: Path) -> list[str]:
    """Give a network the weights in a file, as far as names and shapes agree; return the names of those it got.

    Raises:
        CheckpointError: The file is not there, or is damaged.
    """
    known = read_file(path)["model"]
    own = model.state_dict()
    shared = [name for name, value in own.items() if name in known and known[name].shape == value.shape]
    with torch.no_grad():
        for name in shared:
            own[name].copy_(known[name])
    return shared


def nearest(taken: Architecture, outcomes: Sequence[Outcome], folder: Path) -> int | None:
    """Return the number of the trial to inherit from: the most similar network whose weights were kept.

    Of equally similar ones the better counts, and of equally good ones the older.

    Args:
        taken: What was decided for the trial that inherits.
        outcomes: The results so far.
        folder: Where the weights are.
    """
    kept = [one for one in outcomes if weights_file(folder, one.number).is_file()]
    if not kept:
        return None
    return min(kept, key=lambda one: (distance(taken, one.taken), one.values, one.number)).number
