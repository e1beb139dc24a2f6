"""Tar shards: the files of a sample stand together in a tar file, and share the first part of their names."""

import io
import json
import tarfile
import zlib
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from treadle.data.sources.descriptors import OpenFiles
from treadle.data.sources.images import image_tensor
from treadle.data.sources.orders import BlockOrder, PermutedOrder, SourceOrder
from treadle.data.sources.records import Columns, CorruptRecordError, by_name, found_files, index_of
from treadle.data.sources.source import IndexedSource
from treadle.errors import DataError, require_positive

ENDINGS = (".tar",)
BLOCK = 256
"""Samples that stay together when an epoch is shuffled by blocks."""


def member_index(path: Path) -> tuple[Columns, dict[str, Any]]:
    """Return the members of each sample of a shard: where they are, and their names."""
    firsts: list[int] = []
    offsets: list[int] = []
    sizes: list[int] = []
    names: list[str] = []
    before = None
    try:
        with tarfile.open(path, "r:") as shard:
            for member in shard:
                if not member.isfile():
                    continue
                key, _ = key_and_ending(member.name)
                if key != before:
                    firsts.append(len(names))
                    before = key
                offsets.append(member.offset_data)
                sizes.append(member.size)
                names.append(member.name)
    except tarfile.TarError as error:
        raise DataError(
            f"TarShards: {path} is no tar file that can be entered anywhere: {error}; one that is compressed is to be "
            "unpacked first"
        ) from None
    text = "\n".join(names).encode()
    columns: Columns = {
        "first": np.asarray([*firsts, len(names)], np.uint64),
        "offset": np.asarray(offsets, np.uint64),
        "size": np.asarray(sizes, np.uint64),
        "names": np.frombuffer(text, np.uint8),
        "name_end": np.cumsum([len(name.encode()) + 1 for name in names]).astype(np.uint64),
    }
    crc = zlib.crc32(text, zlib.crc32(columns["size"]))
    return columns, {"crc32": f"{crc:08x}"}


def key_and_ending(name: str) -> tuple[str, str]:
    """Return the key of the sample that a member belongs to, and what it is of that sample.

    >>> key_and_ending("train/0001.seg.png")
    ('train/0001', 'seg.png')
    """
    folder, slash, file = name.rpartition("/")
    stem, _, ending = file.partition(".")
    return f"{folder}{slash}{stem}", ending.lower()


def _text(data: bytes) -> str:
    return data.decode()


def _number(data: bytes) -> int:
    return int(data)


def _array(data: bytes) -> Any:
    return np.load(io.BytesIO(data), allow_pickle=False)


DECODERS: dict[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(("txt", "text"), _text),
    **dict.fromkeys(("cls", "cls2", "index", "id"), _number),
    **dict.fromkeys(("json",), json.loads),
    **dict.fromkeys(("npy",), _array),
    **dict.fromkeys(("jpg", "jpeg", "png", "ppm", "webp", "bmp"), image_tensor),
}
"""What makes a value of a member's bytes, by its ending."""


class TarShards(IndexedSource):
    """Samples from tar files as WebDataset writes them: dicts of what the members of a sample hold, by their endings.

    The first time, the headers of each file are read to find its members; that index is kept beside it. So a shard is
    entered at any sample, and members that nobody asks for are never read.

    Args:
        path: A file, a folder, a pattern such as "shard-*.tar", or a list of these.
        members: Which members to read, by their endings, such as `("jpg", "cls")`; None is all that a sample has.
        decode: Whether members are decoded by their endings; False leaves them as bytes; a dict of functions from
            bytes, by ending, is asked first.
        window: How many blocks of 256 neighbouring samples are shuffled together; None permutes all samples.
        transform: Makes a sample of the dict, which has the sample's key too, as `__key__`; without one, a sample has
            no key.
        on_corrupt: "raise" makes a sample that cannot be read an error; "skip" takes the next one in its place, and
            counts it.
        index_dir: Where indices are kept; None is beside the files.

    Raises:
        DataError: There is no file, one is no tar file or is compressed, or they have no sample.
    """

    def __init__(
        self,
        path: str | Path | Sequence[str | Path],
        *,
        members: Sequence[str] | None = None,
        decode: bool | Mapping[str, Callable[[bytes], Any]] = True,
        window: int | None = 64,
        transform: Callable[[Any], Any] | None = None,
        on_corrupt: str = "raise",
        index_dir: str | Path | None = None,
    ) -> None:
        super().__init__(transform=transform, on_corrupt=on_corrupt)
        if window is not None:
            require_positive("TarShards: window", window)
        self.window = window
        self.members = None if members is None else tuple(members)
        self._decoders = {**(DECODERS if decode else {}), **(decode if isinstance(decode, Mapping) else {})}
        self.paths = found_files(path, ENDINGS, "TarShards")
        indices = [index_of(one, member_index, index_dir) for one in self.paths]
        self._marks = [f"{one.facts['size']} bytes, {one.facts['crc32']}" for one in indices]
        self._shards = [one.columns for one in indices]
        self.sizes = [len(one["first"]) - 1 for one in self._shards]
        self._firsts = [0, *np.cumsum(self.sizes).tolist()]
        self._files = OpenFiles(self.paths)
        if not len(self):
            raise DataError(f"TarShards: {', '.join(map(str, self.paths[:3]))} has no sample; give at least one")

    def __len__(self) -> int:
        return int(self._firsts[-1])

    def order(self, seed: int) -> SourceOrder:
        """Return the order of the epochs of a run with this seed."""
        if self.window is None:
            return PermutedOrder(len(self), seed)
        blocks = [min(BLOCK, size - first) for size in self.sizes for first in range(0, size, BLOCK)]
        return BlockOrder(blocks, seed, self.window)

    def read_one(self, index: int) -> Any:
        """Return what the members of a sample hold, by their endings.

        Raises:
            CorruptRecordError: One is cut off, or cannot be decoded, or is missing.
        """
        place = bisect_right(self._firsts, index) - 1
        shard, number = self._shards[place], index - self._firsts[place]
        first, last = int(shard["first"][number]), int(shard["first"][number + 1])
        sample: dict[str, Any] = {}
        for member in range(first, last):
            name = _name(shard, member)
            key, ending = key_and_ending(name)
            if self.members is None or ending in self.members:
                sample[ending] = self._decoded(place, name, ending, int(shard["size"][member]), shard, member)
        if self.members is not None and len(sample) < len(self.members):
            absent = [one for one in self.members if one not in sample]
            raise self._corrupt(place, key, f"has no {' and no '.join(absent)}")
        if self.transform is not None:
            sample["__key__"] = key
        return sample

    def _decoded(self, place: int, name: str, ending: str, size: int, shard: Columns, member: int) -> Any:
        data = self._files.read(place, size, int(shard["offset"][member]))
        if len(data) < size:
            raise self._corrupt(place, name, f"is cut off after {len(data)} of {size} bytes")
        decoder = self._decoders.get(ending) or self._decoders.get(ending.rpartition(".")[2])
        if decoder is None:
            return data
        try:
            return decoder(data)
        except ImportError:
            raise
        except Exception as error:
            raise self._corrupt(place, name, f"cannot be decoded ({type(error).__name__}: {error})") from error

    def _corrupt(self, place: int, name: str, what: str) -> CorruptRecordError:
        return CorruptRecordError(
            f"{self.paths[place]}, member {name}: {what}; write the shard again, or pass on_corrupt='skip'"
        )

    def fingerprint(self) -> Mapping[str, Any]:
        """Return the size of each file, and a checksum of the names and sizes of its members."""
        return by_name(self.paths, self._marks)


def _name(shard: Columns, member: int) -> str:
    ends = shard["name_end"]
    begin = 0 if member == 0 else int(ends[member - 1])
    return bytes(shard["names"][begin : int(ends[member]) - 1]).decode()
