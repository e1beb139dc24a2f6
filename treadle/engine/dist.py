"""Which process this is among those of a run, and what they tell each other."""

import os
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as distributed
from torch import Tensor

from treadle.parallel import Processes

__all__ = [
    "broadcast_from_main",
    "get_local_rank",
    "get_num_nodes",
    "get_rank",
    "get_world_size",
    "is_last_process",
    "is_main_process",
    "reduce_dict",
    "synchronize",
]


def get_world_size() -> int:
    """Return how many processes the run has."""
    return distributed.get_world_size() if _joined() else int(os.environ.get("WORLD_SIZE", "1"))


def get_rank() -> int:
    """Return the number of this process, from 0."""
    return distributed.get_rank() if _joined() else int(os.environ.get("RANK", "0"))


def get_local_rank() -> int:
    """Return the number of this process on its machine, from 0."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def get_num_nodes() -> int:
    """Return how many machines the run is on."""
    return max(1, get_world_size() // int(os.environ.get("LOCAL_WORLD_SIZE", str(get_world_size()))))


def is_main_process() -> bool:
    """Whether this is the first process, which writes what all have in common."""
    return get_rank() == 0


def is_last_process() -> bool:
    """Whether this is the last process."""
    return get_rank() == get_world_size() - 1


def synchronize() -> None:
    """Wait until every process has come here."""
    if get_world_size() > 1:
        Processes().barrier()


def broadcast_from_main(value: Any) -> Any:
    """Return the first process's `value`: plain data, the same on all."""
    return value if get_world_size() == 1 else Processes().share(value)


def reduce_dict(input_dict: Mapping[str, Tensor], average: bool = True) -> dict[str, Tensor]:
    """Return the mean, or the sum, of each tensor over all processes; nothing waits for the device.

    Args:
        input_dict: Tensors of one element by name, the same names on each process.
        average: Whether it is the mean.
    """
    names, world = sorted(input_dict), get_world_size()
    if world == 1 or not names:
        return dict(input_dict)
    Processes()
    row = torch.stack([input_dict[name].detach().float().reshape(()) for name in names])
    distributed.all_reduce(row)
    return dict(zip(names, (row / world if average else row).unbind(), strict=True))


def _joined() -> bool:
    return distributed.is_available() and distributed.is_initialized()
