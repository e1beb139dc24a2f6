"""A folder of images: a folder for each class."""

import io
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from treadle.data.sources.records import CorruptRecordError
from treadle.data.sources.source import IndexedSource
from treadle.errors import DataError, importing

ENDINGS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".webp", ".tif", ".tiff")


def image_tensor(data: bytes) -> Tensor:
    """Return an image as a tensor of bytes: colours, rows, columns.

    Raises:
        MissingDependencyError: Pillow is not installed.
    """
    with importing("PIL", extra="images", user="decoding images"):
        from PIL import Image
    with Image.open(io.BytesIO(data)) as image:
        pixels = np.array(image.convert("RGB"))
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


class ImageFolder(IndexedSource):
    """Images and the numbers of their classes, from a folder that has a folder for each class.

    Args:
        path: The folder.
        decode: Makes an image of the bytes of a file; by default Pillow does, as a tensor of bytes with three colours.
        transform: Makes a sample of the pair of image and class; None leaves it as it is.
        on_corrupt: "raise" makes a file that cannot be decoded an error; "skip" takes the next one in its place, and
            counts it.
        endings: Which files are images.

    Attributes:
        classes: The names of the classes, in order.

    Raises:
        DataError: There is no such folder, or no image in it.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        decode: Callable[[bytes], Any] = image_tensor,
        transform: Callable[[Any], Any] | None = None,
        on_corrupt: str = "raise",
        endings: Sequence[str] = ENDINGS,
    ) -> None:
        super().__init__(transform=transform, on_corrupt=on_corrupt)
        self.root, self.decode = Path(path), decode
        self._mark: str | None = None
        if not self.root.is_dir():
            raise DataError(f"ImageFolder: {path} is no folder; give the one that has a folder for each class")
        self.classes = sorted(one.name for one in self.root.iterdir() if one.is_dir())
        self._files = [
            (os.fspath(file.relative_to(self.root)), number)
            for number, name in enumerate(self.classes)
            for file in sorted((self.root / name).rglob("*"))
            if file.name.lower().endswith(tuple(endings)) and file.is_file()
        ]
        if not self._files:
            raise DataError(f"ImageFolder: {path} has no image in its folders {self.classes}; images end in {endings}")

    def __len__(self) -> int:
        return len(self._files)

    def read_one(self, index: int) -> Any:
        """Return an image, and the number of its class.

        Raises:
            CorruptRecordError: The file cannot be decoded.
        """
        name, number = self._files[index]
        path = self.root / name
        try:
            return self.decode(path.read_bytes()), number
        except ImportError:
            raise
        except Exception as error:
            raise CorruptRecordError(
                f"{path}: cannot be decoded ({type(error).__name__}: {error}); mend or remove it, or pass "
                "on_corrupt='skip'"
            ) from error

    def fingerprint(self) -> Mapping[str, Any]:
        """Return how many files there are, and a checksum of their names and sizes when this was first asked."""
        if self._mark is None:
            value = 0
            for name, _ in self._files:
                value = zlib.crc32(f"{name} {(self.root / name).stat().st_size}\n".encode(), value)
            self._mark = f"{len(self)} files, {value:08x}"
        return {self.root.name: self._mark}
