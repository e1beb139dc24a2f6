"""Small texts and images in the formats of the real data, so that the examples run without it."""

import gzip
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from treadle.config import LazyConfig
from treadle.data import data_folder
from treadle.errors import DataError

EXAMPLES = Path(__file__).parents[2] / "examples"


def write_idx(path: Path, entries: Tensor) -> None:
    """Write bytes as an idx file, gzipped."""
    head = bytes([0, 0, 8, entries.dim()]) + b"".join(size.to_bytes(4, "big") for size in entries.shape)
    path.write_bytes(gzip.compress(head + entries.to(torch.uint8).numpy().tobytes()))


def striped(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return images of 28 x 28 with a bright row whose height is their label, on noise."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=generator)
    images = torch.randint(60, (count, 28, 28), generator=generator)
    images[torch.arange(count), 4 + 2 * labels] = 250
    return images, labels


def load(name: str, *overrides: str) -> Any:
    """Return the config of an example with changes."""
    return LazyConfig.apply_overrides(LazyConfig.load(EXAMPLES / name), list(overrides))


def real(name: str) -> Path:
    """Return the folder of a real data set; a test that asks for it is skipped where it is not there."""
    try:
        return data_folder(name)
    except DataError as error:
        pytest.skip(str(error))
