"""The data of the runs that are killed: each kind is drawn, shuffled and resumed in another way."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, WeightedRandomSampler, get_worker_info

from treadle.data.sources import Mixture, PackedDocuments, PackedStream

BATCH = 8
SAMPLES = 103
"""Thirteen batches, the last one short, so that the last window of an epoch holds one batch instead of two."""

Sample = tuple[Tensor, Tensor]


def augment(image: Tensor) -> Tensor:
    """Flip and blur an image with the help of all three global generators."""
    if random.random() < 0.5:
        image = image.flip(-1)
    return image + 0.1 * torch.randn_like(image) + 0.01 * float(np.random.rand())


class Images(Dataset[Sample]):
    """Random images and labels, augmented differently each time they are asked for."""

    def __init__(self, count: int = SAMPLES) -> None:
        generator = torch.Generator().manual_seed(3)
        self.images = torch.randn(count, 1, 8, 8, generator=generator)
        self.labels = torch.randint(0, 4, (count,), generator=generator)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Sample:
        return augment(self.images[index]), self.labels[index]


class Sequence(IterableDataset[Sample]):
    """The images one after the other, in an order of its own for each pass, shared out among workers."""

    def __init__(self) -> None:
        self._images = Images()
        self._passes = 0

    def __iter__(self) -> Iterator[Sample]:
        self._passes += 1
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return map(self._sample, range(first, SAMPLES, step))

    def _sample(self, index: int) -> Sample:
        return self._images.images[index], self._images.labels[index]


class PlacedSequence(Sequence):
    """A sequence that can say where it is and go back there."""

    def __init__(self) -> None:
        super().__init__()
        self._next = 0

    def __iter__(self) -> Iterator[Sample]:
        while self._next < SAMPLES:
            self._next += 1
            # Drawn from a global generator: going there again must not draw anything twice.
            yield augment(self._sample(self._next - 1)[0]), self._sample(self._next - 1)[1]
        self._next = 0

    def state_dict(self) -> dict[str, Any]:
        return {"next": self._next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._next = state["next"]


class SharedPlacedSequence(Sequence):
    """A sequence with a state that only moves in the process that reads it, which may be a worker."""

    def __init__(self) -> None:
        super().__init__()
        self._given = 0

    def __iter__(self) -> Iterator[Sample]:
        for sample in super().__iter__():
            self._given += 1
            yield sample

    def state_dict(self) -> dict[str, Any]:
        return {"given": self._given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._given = state["given"]


def documents() -> list[Tensor]:
    """Return documents of 3 to 60 tokens."""
    generator = torch.Generator().manual_seed(5)
    lengths = torch.randint(3, 61, (2 * SAMPLES,), generator=generator).tolist()
    return [torch.randint(0, 40, (length,), generator=generator) for length in lengths]


def as_image(row: dict[str, Tensor]) -> Sample:
    """Return a packed row of 64 tokens in the form that the model takes."""
    return row["input_ids"].view(1, 8, 8) / 40, row["position_ids"].sum() % 4


def as_images(rows: list[dict[str, Tensor]]) -> Sample:
    """Return a batch of packed rows in the form that the model takes."""
    images, labels = zip(*map(as_image, rows), strict=True)
    return torch.stack(images), torch.stack(labels)


class Packed(Dataset[Sample]):
    """Documents packed into rows."""

    def __init__(self) -> None:
        self._rows = PackedDocuments(documents(), 64, buffer=40)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Sample:
        return as_image(self._rows[index])


class Pairs:
    """A batch sampler of your own: random neighbours, in batches whose sizes differ."""

    def __iter__(self) -> Iterator[list[int]]:
        starts = torch.randperm(SAMPLES // BATCH).tolist()
        for start in starts:
            size = random.randint(2, BATCH)
            yield [start * BATCH + offset for offset in range(size)]

    def __len__(self) -> int:
        return SAMPLES // BATCH


def make_data(kind: str, workers: int) -> Any:
    """Return what to train on: a data set for the trainer to load, or a loader that somebody made."""
    if kind == "images":
        return Images()
    if kind == "shuffled loader":
        return DataLoader(Images(), batch_size=BATCH, shuffle=True, num_workers=workers)
    if kind == "own generator":
        generator = torch.Generator().manual_seed(11)
        return DataLoader(Images(), batch_size=BATCH, shuffle=True, num_workers=workers, generator=generator)
    if kind == "weighted":
        sampler = WeightedRandomSampler(torch.linspace(1, 5, SAMPLES).tolist(), SAMPLES)
        return DataLoader(Images(), batch_size=BATCH, sampler=sampler, num_workers=workers)
    if kind == "batch sampler":
        return DataLoader(Images(), batch_sampler=Pairs(), num_workers=workers)  # type: ignore[arg-type]
    if kind == "packed":
        return DataLoader(Packed(), batch_size=BATCH, shuffle=True, num_workers=workers)
    if kind == "packed sequence":
        stream = PackedStream(documents(), 64, buffer=40, transform=as_image)
        return DataLoader(stream, batch_size=BATCH, num_workers=workers)
    if kind == "packed mixture":
        texts = documents()
        parts = {str(place): PackedDocuments(texts[place::3], 64, buffer=40) for place in range(3)}
        return DataLoader(
            Mixture(parts, {"0": 3, "1": 2, "2": 1}, length=SAMPLES),
            batch_size=BATCH,
            shuffle=True,
            num_workers=workers,
            collate_fn=as_images,
        )
    sequences = {"sequence": Sequence, "placed sequence": PlacedSequence, "shared sequence": SharedPlacedSequence}
    return DataLoader(sequences[kind](), batch_size=BATCH, num_workers=workers)
