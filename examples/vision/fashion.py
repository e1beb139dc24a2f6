"""Fashion-MNIST, read from its own files and kept in memory; a batch is one indexing call."""

import gzip
import math
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from treadle.data import data_folder, make_loader
from treadle.errors import ConfigError, DataError

NAME = "fashion-mnist"
SPLITS = ("train", "validation", "test")
CLASSES = 10
MEAN, DEVIATION = 0.2860, 0.3530
"""Of the points of all training images, where 0 is black and 1 is white."""
UNSIGNED_BYTES = 0x08
"""How an idx file says that its entries are bytes."""

Batch = dict[str, Tensor]


class Images(Dataset[Batch]):
    """Images with their labels.

    Args:
        images: Bytes of (count, rows, columns).
        labels: The class of each.
        shift: By how many points at most an image is moved, at random, up or down and to the side.
        flip: Whether every other image, at random, is mirrored.
    """

    def __init__(self, images: Tensor, labels: Tensor, *, shift: int = 0, flip: bool = False) -> None:
        if len(images) != len(labels):
            raise DataError(f"there are {len(images)} images and {len(labels)} labels; each image needs one")
        self.images = images
        self.labels = labels.long()
        self._shift = shift
        self._flip = flip

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Batch:
        return {name: part[0] for name, part in self.__getitems__([index]).items()}

    def __getitems__(self, indices: list[int]) -> Batch:
        """Return a batch, collated already; what is random in it depends on the run's seed, the epoch and `indices`."""
        images = self.images[indices]
        if self._shift:
            images = shifted(images, self._shift)
        if self._flip:
            images = flipped(images)
        points = images.float().div_(255).sub_(MEAN).div_(DEVIATION)
        return {"images": points.unsqueeze(1), "labels": self.labels[indices]}


def shifted(images: Tensor, most: int) -> Tensor:
    """Return images of (batch, rows, columns), each moved by up to `most` points in both directions, black behind."""
    count, rows, columns = images.shape
    padded = F.pad(images, (most, most, most, most))
    down, right = torch.randint(2 * most + 1, (2, count, 1))
    from_rows = (down + torch.arange(rows)).unsqueeze(2)
    from_columns = (right + torch.arange(columns)).unsqueeze(1)
    return padded[torch.arange(count).view(-1, 1, 1), from_rows, from_columns]


def flipped(images: Tensor) -> Tensor:
    """Return images of (batch, rows, columns), each mirrored with an even chance."""
    mirrored = torch.rand(len(images), 1, 1) < 0.5
    return torch.where(mirrored, images.flip(-1), images)


def fashion_loader(
    split: str,
    batch_size: int,
    *,
    shift: int = 0,
    flip: bool = False,
    held_out: int = 5000,
    folder: str | Path | None = None,
) -> DataLoader[Batch]:
    """Return a loader of Fashion-MNIST.

    Args:
        split: "train", "validation" (the last images of the training files) or "test".
        batch_size: Images in a batch.
        shift: By how many points at most an image is moved at random.
        flip: Whether every other image is mirrored.
        held_out: How many training images are for validation.
        folder: Where the four files lie; None for `fashion-mnist` in the folder of all data.
    """
    if split not in SPLITS:
        raise ConfigError(f"fashion_loader: split={split!r} is unknown; use one of {SPLITS}")
    images, labels = _part(split, held_out, folder)
    return make_loader(
        Images(images, labels, shift=shift, flip=flip),
        shuffle=split == "train",
        batch_size=batch_size,
        collate_fn=as_collated,
        pin_memory=torch.cuda.is_available(),
    )


def _part(split: str, held_out: int, folder: str | Path | None) -> tuple[Tensor, Tensor]:
    if split == "test":
        return read_split("t10k", folder)
    images, labels = read_split("train", folder)
    if not 0 < held_out < len(images):
        raise ConfigError(
            f"fashion_loader: held_out={held_out} must lie between 0 and {len(images)}, the images there are"
        )
    part = slice(-held_out) if split == "train" else slice(-held_out, None)
    return images[part], labels[part]


def as_collated(batch: Batch) -> Batch:
    """Return a batch that was fetched as a whole."""
    return batch


def read_split(prefix: str, folder: str | Path | None = None) -> tuple[Tensor, Tensor]:
    """Return the images and the labels of the files whose names begin with `prefix`."""
    place = data_folder(NAME) if folder is None else Path(folder)
    images = read_idx(place / f"{prefix}-images-idx3-ubyte.gz")
    return images, read_idx(place / f"{prefix}-labels-idx1-ubyte.gz")


def read_idx(path: Path) -> Tensor:
    """Return the bytes in a gzipped idx file: two zeros, a type, the number of dimensions, their sizes, the entries.

    Raises:
        DataError: There is no such file, or it holds something else.
    """
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    data = bytearray(gzip.decompress(path.read_bytes()))
    if len(data) < 4 or data[:3] != bytes([0, 0, UNSIGNED_BYTES]):
        raise DataError(f"{path} is no idx file of bytes: it begins with {data[:4].hex(' ')!r}")
    begin = 4 + 4 * data[3]
    shape = [int.from_bytes(data[place : place + 4], "big") for place in range(4, begin, 4)]
    if len(data) - begin != math.prod(shape):
        raise DataError(f"{path} holds {len(data) - begin} entries, but its head says {shape}; it was cut or spoilt")
    return torch.frombuffer(data, dtype=torch.uint8, offset=begin).view(shape)
