"""A small run on disk with several checkpoints, and ways to damage it."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.interrupting import make_trainer, samples
from treadle.checkpoint import CheckpointStore, Policy

PAGE = 4096
STEPS = (3, 6, 9)
"""Where the run has its checkpoints: after each of its three epochs."""

FILES = ("manifest.json", "rank_0.json", "rank_0.safetensors")


def wide_network() -> nn.Module:
    """A network whose checkpoint fills a good number of pages."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(2, 900), nn.Dropout(0.3), nn.Linear(900, 1))


def wide_trainer(folder: Path | None, *callbacks: Any, **kwargs: Any) -> Any:
    """Return a trainer of the wide network, as a new process would build it."""
    policy = kwargs.pop("checkpoints", Policy(keep_last=None))
    return make_trainer(folder, *callbacks, build=wide_network, checkpoints=policy, **kwargs)


def train(folder: Path | None, *callbacks: Any, **kwargs: Any) -> Any:
    """Train, or go on, until the end; return the trainer."""
    trainer = wide_trainer(folder, *callbacks, **kwargs)
    trainer.train(samples(), 3, resume="auto" if folder else None)
    return trainer


def store_of(run: Path) -> CheckpointStore:
    """Return the checkpoints of a run, as a reader opens them."""
    return CheckpointStore(run / "checkpoints", Policy())


def checkpoint(run: Path, step: int) -> Path:
    """Return the folder of a checkpoint."""
    return run / "checkpoints" / f"step_{step:08d}"


@contextmanager
def content_of(path: Path, content: bytes) -> Iterator[None]:
    """Let a file have other content for a while."""
    before = path.read_bytes()
    path.write_bytes(content)
    try:
        yield
    finally:
        path.write_bytes(before)


def truncations(content: bytes) -> Iterator[bytes]:
    """Yield the file cut off at every page, and just before its end."""
    for length in (*range(0, len(content), PAGE), len(content) - 1):
        yield content[:length]


def flips(content: bytes, most: int) -> Iterator[bytes]:
    """Yield the file with one bit flipped, at up to `most` places spread over it; the first and last bytes too."""
    chance = random.Random(len(content))
    places = {*range(min(16, len(content))), len(content) - 1, *chance.sample(range(len(content)), most)}
    for place in sorted(places):
        damaged = bytearray(content)
        damaged[place] ^= 1 << chance.randrange(8)
        yield bytes(damaged)
