"""The processes of a plan as a grid."""

import atexit
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from treadle.parallel.plan import Degrees
from treadle.parallel.processes import Processes, leave_group, meshes

BATCH = "batch"
"""The axes `data` and `shard` as one: the ranks that share the data."""


class Mesh:
    """The grid of ranks, with an axis for each number of the plan that is above 1.

    Args:
        processes: The processes.
        degrees: The numbers of the plan.
        keep_shard: Whether the axis `shard` is there even for one rank.
    """

    def __init__(self, processes: Processes, degrees: Degrees, *, keep_shard: bool) -> None:
        if not dist.is_initialized():
            # Torch's parallel modules talk to a group, one rank alone too.
            store = dist.HashStore()  # type: ignore[attr-defined]
            backend = "cpu:gloo,cuda:nccl" if processes.device.type == "cuda" else "gloo"
            dist.init_process_group(backend, store=store, rank=0, world_size=1)
            atexit.register(leave_group)
        self.degrees = degrees
        sharded = degrees.shard > 1 or keep_shard
        # One axis of data is always there, for the group of ranks that hold the same weights.
        kept = {"data": degrees.data > 1 or not sharded, "shard": sharded}
        axes = {axis: size for axis, size in degrees._asdict().items() if kept.get(axis, size > 1)}
        self.axes = tuple(axes)
        shared = tuple(axis for axis in ("data", "shard") if axis in axes)
        self._batch = shared[0] if len(shared) == 1 else BATCH
        key = (processes.device.type, tuple(axes.items()))
        if key not in meshes:
            meshes[key] = init_device_mesh(key[0], tuple(axes.values()), mesh_dim_names=self.axes)
            if len(shared) > 1:
                meshes[key][shared]._flatten(BATCH)
        self.whole = meshes[key]

    def __getitem__(self, axes: str | tuple[str, ...]) -> Any:
        return self.whole[axes]

    def place(self, axis: str) -> int:
        """Return the place of this rank along an axis."""
        return int(self.whole.get_local_rank(axis)) if axis in self.axes else 0

    def batch_group(self) -> Any:
        """Return the ranks that work on different shares of the data, this one among them."""
        return self.whole[self._batch].get_group()

    def group(self, axis: str) -> Any:
        """Return the group along an axis."""
        return self.whole[axis].get_group()
