"""Folders with small data, in the files of the real data sets."""

import gzip
from pathlib import Path

import pytest

from tests.examples.parts import striped, write_idx


@pytest.fixture
def text_folder(tmp_path: Path) -> Path:
    """A folder with a text of 4,806 characters, 26 different ones, gzipped like the real one."""
    folder = tmp_path / "text"
    folder.mkdir()
    text = "the quick brown fox jumps over a log.\n" * 120 + "a quick log jumps. " * 12 + "the fox.\n" * 2
    (folder / "input.txt.gz").write_bytes(gzip.compress(text.encode()))
    return folder


@pytest.fixture
def image_folder(tmp_path: Path) -> Path:
    """A folder with 160 training images and 40 test images, in the four files of Fashion-MNIST."""
    folder = tmp_path / "images"
    folder.mkdir()
    for prefix, count, seed in (("train", 160, 0), ("t10k", 40, 1)):
        images, labels = striped(count, seed)
        write_idx(folder / f"{prefix}-images-idx3-ubyte.gz", images)
        write_idx(folder / f"{prefix}-labels-idx1-ubyte.gz", labels)
    return folder
