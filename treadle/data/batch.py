"""What one can say of a batch without knowing its type: how large it is, and how to move it."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, Self, runtime_checkable

import torch
from torch import Tensor

from treadle.errors import DataError

Batch = Any


@runtime_checkable
class TakesRows(Protocol):
    """A batch of a type of its own that can be cut along its samples."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def take_rows(self, first: int, last: int) -> Self:
        """Return the samples from `first` up to, and without, `last`."""


def mover(device: torch.device) -> Callable[[Batch], Batch]:
    """Return the function that brings a batch to `device`; on the CPU it does nothing."""
    if device.type == "cpu":
        return stay
    # MPS reads the host's memory later, without keeping it from being given back meanwhile.
    ahead = device.type != "mps"

    def move(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return leaf.to(device, non_blocking=ahead)
        return leaf.to(device) if hasattr(leaf, "to") else leaf

    return lambda batch: map_leaves(move, batch)


def map_leaves(function: Callable[[Any], Any], batch: Batch) -> Batch:
    """Return a batch of the same make, with each tensor, and whatever else is no container, put through `function`."""
    if isinstance(batch, Tensor):
        return function(batch)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        # One that can be moved itself knows more than its fields: a packed sequence keeps its lengths on the host.
        return function(batch) if hasattr(batch, "to") else type(batch)(*(map_leaves(function, part) for part in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(map_leaves(function, part) for part in batch)
    if isinstance(batch, Mapping):
        return rebuilt(batch, {key: map_leaves(function, value) for key, value in batch.items()})
    return function(batch)


def stay(batch: Batch) -> Batch:
    """Return `batch` as it is."""
    return batch


def rebuilt(batch: Mapping[Any, Any], moved: dict[Any, Any]) -> Any:
    """Keep the type of a mapping that can be built from a dict, such as a Hugging Face batch."""
    if type(batch) is dict:
        return moved
    try:
        return type(batch)(moved)  # type: ignore[call-arg]
    except TypeError:
        return moved


def size_of(batch: Batch) -> int:
    """Return the number of samples in a batch.

    >>> size_of((torch.zeros(3, 2), torch.zeros(3))), size_of({"ids": torch.zeros(4, 7)})
    (3, 4)

    Raises:
        DataError: The batch holds nothing with a length.
    """
    if isinstance(batch, Tensor):
        return batch.shape[0] if batch.dim() else 1
    # The first tensor of columns by name; of a tuple the last, where targets stand.
    if isinstance(batch, (dict, Mapping)):
        parts = in_turn = list(batch.values())
    else:
        parts = list(batch) if isinstance(batch, (list, tuple)) else []
        in_turn = parts[::-1]
    for part in in_turn:
        if isinstance(part, Tensor) and part.dim():
            return part.shape[0]
    for part in parts:
        if isinstance(part, (Mapping, list, tuple)):
            return size_of(part)
    if hasattr(batch, "__len__"):
        return len(batch)
    raise DataError(
        f"the size of a batch of type {type(batch).__name__} is not known; "
        "return 'batch_size' from calculate_train_batch_loss and calculate_eval_batch_loss"
    )
