"""Copies of sources and samplers, for a pass over the data that leaves those of the run where they are."""

import random
from collections.abc import Iterator
from copy import copy, deepcopy
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Sampler

from treadle.errors import DataError

GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
"""What moves when it is drawn from."""


def source_apart(source: Any, name: str) -> Any:
    """Return a source like `source`, to be read while a run reads that one.

    Args:
        source: A `DataLoader`, or an iterable of ready batches.
        name: What to call it in messages.

    Raises:
        DataError: It can be read only once.
    """
    if not isinstance(source, DataLoader):
        return _apart(source, name)
    other = copy(source)
    own: dict[str, Any] = {"_iterator": None, "persistent_workers": False}
    if hasattr(source, "next_iter_state"):
        # Torchdata's loader.
        own |= {"next_iter_state": None, "_initial_iter_for_state_dict": False}
    if source.num_workers == 0:
        own["dataset"] = _apart(source.dataset, name)
    vars(other).update(own)
    return other


def _apart(data: Any, name: str) -> Any:
    if isinstance(data, Iterator):
        raise DataError(
            f"the {name} data is an iterator, a {type(data).__name__}, which can be read once, and the run reads it; "
            "to go through it besides, pass a data set, a DataLoader or an iterable that begins anew each time"
        )
    if not hasattr(data, "state_dict"):
        return with_own_generators(data)
    try:
        return deepcopy(data)
    except Exception as error:
        raise DataError(
            f"the {name} data, a {type(data).__name__}, keeps its place and cannot be copied, so it cannot be read "
            f"while the run reads it ({type(error).__name__}: {error}); iterate over a second one of your own"
        ) from error


def with_own_generators(one: Any) -> Any:
    """Return a copy of a sampler or an iterable that shares all but its random generators, and samplers in it.

    What cannot be copied is returned itself.
    """
    if isinstance(one, (list, tuple, range)) or not hasattr(one, "__dict__"):
        return one
    try:
        other = copy(one)
    except Exception:
        return one
    for key, value in vars(one).items():
        if isinstance(value, GENERATORS):
            vars(other)[key] = deepcopy(value)
        elif isinstance(value, Sampler):
            vars(other)[key] = with_own_generators(value)
    return other
