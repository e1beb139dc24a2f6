"""Single acts on a folder of checkpoints, to be killed in the middle."""

from pathlib import Path
from typing import Any

import torch

from treadle.checkpoint import CheckpointStore, Policy
from treadle.checkpoint.tree import split


def save(folder: Path, step: int, number: float, facts: dict[str, Any]) -> None:
    """Write a checkpoint that can be told from others by its number."""
    structure, tensors = split({"number": number, "tensor": torch.full((500,), number)})
    CheckpointStore(folder, Policy(keep_last=1, best="loss")).write(step, structure, tensors, facts, "attempt")


def first_saves(folder: Path) -> None:
    """Write the checkpoints that are there before: the best, of step 5, and the last, of step 7."""
    save(folder, 5, 5.0, {"best": True})
    save(folder, 7, 7.0, {})


def save_next(folder: Path) -> None:
    """Write the checkpoint of a later step; that of step 7 is not kept."""
    save(folder, 9, 3.0, {})


def save_again(folder: Path) -> None:
    """Write the checkpoint of step 7 again."""
    save(folder, 7, 3.0, {})


def save_better(folder: Path) -> None:
    """Write a later checkpoint that is better than all before."""
    save(folder, 9, 3.0, {"best": True})


def go_back(folder: Path) -> None:
    """Do what a run does that goes on from step 5."""
    store = CheckpointStore(folder, Policy())
    store.discard_after(5)
    store.clear_leftovers()
