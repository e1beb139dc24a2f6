"""Small functions that files written for RecBole import, and that need nothing else of Treadle's."""

import math
import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor


def set_color(log: object, color: str, highlight: bool = True) -> str:
    """Return a text as it is: whoever shows it decides about colours.

    >>> set_color("epoch 0", "green")
    'epoch 0'
    """
    return str(log)


def ensure_dir(dir_path: str | os.PathLike[str]) -> None:
    """Make a folder, unless it is there."""
    Path(dir_path).mkdir(parents=True, exist_ok=True)


def get_local_time() -> str:
    """Return the time as names of files have it, such as `Jan-31-2026_12-00-00`."""
    return datetime.now().strftime("%b-%d-%Y_%H-%M-%S")


def pad_sequence(
    sequences: Sequence[Tensor], len_list: Sequence[int], pad_to: int | None = None, padding_value: float = -math.inf
) -> Tensor:
    """Return sequences of different lengths as rows of one length.

    In RecBole `padding_value` is not used: what is added is -inf, which is the default here.

    >>> pad_sequence([torch.tensor([1.0]), torch.tensor([2.0, 3.0])], [1, 2]).tolist()
    [[1.0, -inf], [2.0, 3.0]]
    """
    width = max(len_list) if pad_to is None else pad_to
    rows = torch.full((len(sequences), width), padding_value, device=sequences[0].device)
    for row, values in zip(rows, sequences, strict=True):
        row[: len(values)] = values
    return rows


def trunc(scores: Any, method: str) -> Any:
    """Return scores rounded by a function of NumPy: "ceil", "floor" or "around".

    >>> trunc(np.array([1.5]), "floor").tolist()
    [1.0]

    Raises:
        NotImplementedError: There is no such function.
    """
    if method not in ("ceil", "floor", "around"):
        raise NotImplementedError(f"scores are rounded by 'ceil', 'floor' or 'around', not by {method!r}")
    return getattr(np, method)(scores)


def cutoff(scores: Any, threshold: float) -> Any:
    """Return 1 for scores above a threshold, and 0 for others.

    >>> cutoff(np.array([0.2, 0.7]), 0.5).tolist()
    [0, 1]
    """
    return np.where(scores > threshold, 1, 0)
