"""Samples of a data set, read to be looked at: their inputs, their labels, and what makes two of them the same."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

IN_MEMORY, READ = 4096, 512
"""Samples of a data set that are looked at: of one whose samples are there already, and of one that reads each."""
LABELS = ("labels", "label", "targets", "target", "y")
"""What labels are called in samples that have names for their parts."""
MOST_FEATURES = 1024


@dataclass
class Samples:
    """Some samples of a data set, from all over it.

    Attributes:
        indices: Which.
        items: What the data set returned for each.
    """

    indices: list[int]
    items: list[Any]

    def __len__(self) -> int:
        return len(self.items)

    @cached_property
    def fingerprints(self) -> list[str]:
        """What is the same for two samples of the same content."""
        return [fingerprint(item) for item in self.items]

    @cached_property
    def inputs(self) -> Tensor | None:
        """A row of numbers for each sample, of many some; None if inputs are anything else than fractions."""
        rows = [row for item in self.items if (row := _numbers(sample_inputs(item))) is not None]
        if not rows or len(rows) < len(self.items) or any(row.shape != rows[0].shape for row in rows):
            return None
        found = torch.stack(rows)
        step = -(-found.shape[1] // MOST_FEATURES)
        return found[:, ::step] if found.shape[1] else None

    @cached_property
    def labels(self) -> Tensor | None:
        """Classes, or a row of numbers for each sample; None if samples have no labels."""
        found = [sample_labels(item) for item in self.items]
        if not found or any(one is None for one in found):
            return None
        kept = [torch.as_tensor(one) for one in found]
        if any(one.shape != kept[0].shape or one.is_complex() for one in kept):
            return None
        joined = torch.stack(kept)
        if not joined.is_floating_point():
            return joined if joined.dim() == 1 else None
        return joined.reshape(len(joined), -1)


def read(data: Any, most: int | None = None) -> Samples | None:
    """Read samples from all over a data set; None if it cannot be asked for them one by one."""
    if not hasattr(data, "__getitem__") or not hasattr(data, "__len__") or isinstance(data, Mapping):
        return None
    size = len(data)
    most = most or (IN_MEMORY if isinstance(data, (TensorDataset, list, tuple)) else READ)
    indices = sorted({size * number // min(size, most) for number in range(min(size, most))}) if size else []
    try:
        return Samples(indices, [data[index] for index in indices])
    except (TypeError, KeyError, IndexError, NotImplementedError):
        # Not a data set that is asked by number.
        return None


def sample_inputs(item: Any) -> Any:
    """Return a sample, or a batch, without its labels."""
    if isinstance(item, Mapping):
        return [value for key, value in item.items() if key not in LABELS]
    if isinstance(item, (tuple, list)) and len(item) > 1:
        return list(item[:-1])
    return item


def sample_labels(item: Any) -> Any:
    """Return the labels of a sample, or of a batch: the last part of several; None if there are none."""
    if isinstance(item, Mapping):
        found = next((item[name] for name in LABELS if name in item), None)
    else:
        found = item[-1] if isinstance(item, (tuple, list)) and len(item) > 1 else None
    return found if isinstance(found, (int, float, Tensor, np.ndarray, np.generic)) else None


def leaves(value: Any) -> Iterator[Any]:
    """Yield what is in a sample, or a batch: tensors, arrays, numbers, and whatever else."""
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield from leaves(value[key])
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves(item)
    else:
        yield torch.from_numpy(value) if isinstance(value, np.ndarray) and value.dtype.kind in "fiub" else value


def _numbers(inputs: Any) -> Tensor | None:
    """Return all the numbers of a sample's inputs in a row; None if some are no fractions."""
    parts = list(leaves(inputs))
    if not parts or not all(isinstance(one, Tensor) and one.is_floating_point() for one in parts):
        return None
    return torch.cat([one.detach().cpu().float().flatten() for one in parts])


def rows(batch: Any, size: int) -> Sequence[Any]:
    """Return the samples of a batch."""
    return [_row(batch, row) for row in range(size)]


def _row(value: Any, row: int) -> Any:
    if isinstance(value, Mapping):
        return {key: _row(item, row) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_row(item, row) for item in value]
    return value[row] if isinstance(value, Tensor) and value.dim() else value


def fingerprint(sample: Any) -> str:
    """Return what is the same for two samples of the same content, whatever they are kept in."""
    digest = hashlib.sha256()
    for part in leaves(sample):
        if isinstance(part, (Tensor, np.ndarray, np.generic, int, float)) and not isinstance(part, bool):
            array = np.asarray(_on_host(part))
            wide = {"f": np.float64, "i": np.int64, "u": np.int64}.get(array.dtype.kind, array.dtype)
            digest.update(repr((array.shape, array.dtype.kind)).encode())
            digest.update(np.ascontiguousarray(array, dtype=wide).tobytes())
        else:
            digest.update(repr(part).encode())
    return digest.hexdigest()


def _on_host(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    # NumPy has no bf16.
    return (value.float() if value.dtype == torch.bfloat16 else value).detach().cpu().numpy()
