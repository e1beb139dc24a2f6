"""Small files of every kind, with samples that are known by a number."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image

from treadle.data.sources import (
    HuggingFace,
    HuggingFaceStream,
    ImageFolder,
    JsonLines,
    Mixture,
    MixtureStream,
    PackedDocuments,
    Parquet,
    TarShards,
    TokenBins,
    write_token_bin,
)


def write_lines(path: Path, numbers: range) -> Path:
    path.write_text("".join(json.dumps({"number": number, "text": "é" * (number % 5)}) + "\n" for number in numbers))
    return path


def write_parquet(path: Path, numbers: range, group: int = 10) -> Path:
    table = pa.table({"number": list(numbers), "square": [float(number**2) for number in numbers]})
    pq.write_table(table, path, row_group_size=group)
    return path


def write_tar(path: Path, numbers: range) -> Path:
    with tarfile.open(path, "w") as shard:
        for number in numbers:
            for ending, data in (("cls", str(number).encode()), ("npy", _as_npy(number))):
                member = tarfile.TarInfo(f"some/{number:05}.{ending}")
                member.size = len(data)
                shard.addfile(member, io.BytesIO(data))
    return path


def _as_npy(number: int) -> bytes:
    file = io.BytesIO()
    np.save(file, np.full(3, number, dtype=np.float32))
    return file.getvalue()


def number_and_features(sample: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Make every kind of sample into the same: two features and a target, the number."""
    number = float(sample["number"] if "number" in sample else sample["cls"])
    return torch.tensor([number, 1.0]), torch.tensor([number])


def pixel_and_features(sample: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Make an image into the same, known by the colour of its first pixel."""
    number = float(sample[0][0, 0, 0])
    return torch.tensor([number, float(sample[1])]), torch.tensor([number])


def marks_of(batch: Any) -> list[int]:
    """Return what the samples of a batch are known by: their numbers, or checksums of rows of tokens."""
    if not isinstance(batch, dict):
        return [int(target) for target in batch[1][:, -1]]
    ids = batch["input_ids"]
    return [int(value) for value in (ids * torch.arange(1, ids.shape[1] + 1) ** 3).sum(dim=1)]


def make_source(kind: str, folder: Path) -> Any:
    """Return a source of `kind` whose targets are its numbers; its files are written when they are not there."""
    if kind == "mixture":
        parts = {one: make_source(one, folder) for one in ("lines", "parquet", "tar")}
        return Mixture(parts, {"lines": 5, "parquet": 3, "tar": 2}, length=60)
    if kind == "stream":
        rows = datasets.Dataset.from_dict({"number": list(range(500, 547))})
        stream = rows.to_iterable_dataset(num_shards=3)
        return HuggingFaceStream(stream, buffer=8, transform=number_and_features)
    if kind == "mixture stream":
        parts = {one: make_source(one, folder) for one in ("lines", "stream")}
        return MixtureStream(parts, {"lines": 1, "stream": 2}, length=50)
    if kind == "table":
        rows = datasets.Dataset.from_dict({"number": list(range(700, 741))})
        return HuggingFace(rows, transform=number_and_features)
    if kind == "packed mixture":
        names = ("web", "code", "books")
        if not (folder / "packed").exists():
            for seed, name in enumerate(names):
                generator = np.random.default_rng(seed)
                documents = [generator.integers(1, 50, generator.integers(2, 20)) for _ in range(40)]
                write_token_bin(folder / "packed" / name, documents)
        packed = {name: PackedDocuments(TokenBins(folder / "packed" / name), row_length=16) for name in names}
        return Mixture(packed, {"web": 2, "code": 1, "books": 1}, length=60)
    place = folder / kind
    if not place.exists():
        place.mkdir(parents=True)
        if kind == "tokens":
            write_token_bin(place / "a", [range(150)])
            write_token_bin(place / "b", [range(200, 280)])
        elif kind == "lines":
            write_lines(place / "a.jsonl", range(30))
            write_lines(place / "b.jsonl", range(30, 47))
        elif kind == "images":
            for number in range(30):
                (place / f"class {number % 3}").mkdir(exist_ok=True)
                Image.new("L", (2, 2), number).save(place / f"class {number % 3}" / f"{number}.png")
        elif kind == "parquet":
            write_parquet(place / "a.parquet", range(100, 135))
            write_parquet(place / "b.parquet", range(135, 155))
        elif kind == "tar":
            write_tar(place / "a.tar", range(1000, 1030))
            write_tar(place / "b.tar", range(1030, 1047))
    if kind == "tokens":
        return TokenBins(place, 4)
    if kind == "lines":
        return JsonLines(place, transform=number_and_features)
    if kind == "images":
        return ImageFolder(place, transform=pixel_and_features)
    if kind == "parquet":
        return Parquet(place, window=2, transform=number_and_features)
    return TarShards(place, transform=number_and_features)
