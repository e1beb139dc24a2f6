"""Single acts on a folder of checkpoints, to be killed in the middle."""

from pathlib import Path
from typing import Any

import torch

from tests.storages import storage_in
from treadle.checkpoint import CheckpointStore, LocalStorage, Policy
from treadle.checkpoint.format.tree import split

STILL = torch.arange(140_000)
"""What is the same in every checkpoint, and large enough to be shared."""


def store_in(folder: Path, storage: str, policy: Policy) -> CheckpointStore:
    """Return the checkpoints of a place of some kind within a folder."""
    place = storage_in(storage, folder)
    return CheckpointStore(folder if isinstance(place, LocalStorage) else place, policy)


def save(folder: Path, storage: str, step: int, number: float, facts: dict[str, Any], attempt: str) -> None:
    """Write a checkpoint that can be told from others by its number."""
    structure, tensors = split({"number": number, "tensor": torch.full((500,), number), "still": STILL})
    store = store_in(folder, storage, Policy(keep_last=1, best="loss"))
    store.write(step, structure, tensors, facts, attempt, frozen=["still"])


def first_saves(folder: Path, storage: str = "folder") -> None:
    """Write the checkpoints that are there before: the best, of step 5, and the last, of step 7."""
    save(folder, storage, 5, 5.0, {"best": True}, "before")
    save(folder, storage, 7, 7.0, {}, "before")


def save_next(folder: Path, storage: str = "folder") -> None:
    """Write the checkpoint of a later step; that of step 7 is not kept."""
    save(folder, storage, 9, 3.0, {}, "attempt")


def save_again(folder: Path, storage: str = "folder") -> None:
    """Write the checkpoint of step 7 again."""
    save(folder, storage, 7, 3.0, {}, "attempt")


def save_better(folder: Path, storage: str = "folder") -> None:
    """Write a later checkpoint that is better than all before."""
    save(folder, storage, 9, 3.0, {"best": True}, "attempt")


def go_back(folder: Path, storage: str = "folder") -> None:
    """Do what a run does that goes on from step 5."""
    store = store_in(folder, storage, Policy())
    store.discard_after(5)
    store.clear_leftovers()
