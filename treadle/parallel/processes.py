"""The processes of a run: which one this is, and what they tell each other on the host."""

import atexit
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from treadle.errors import ConfigError
from treadle.parallel.flight_recorder import record_collectives
from treadle.parallel.launch.slurm import use_slurm_task
from treadle.parallel.rendezvous import join_rendezvous, store_outlives_processes

REDUCTIONS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}
TIMEOUT_SECONDS = 1800.0
"""How long processes wait for each other unless somebody chose otherwise."""
MEETING_SECONDS = 300.0
"""How long at least they wait for each other to be started, which takes its time whatever was chosen."""
REST_SECONDS = 2.0
"""How long a process that ends waits for the threads of its group to have nothing to do."""


class Processes:
    """This process among those that `torchrun` or `srun` started; alone, it talks to nobody.

    What is agreed on the host travels over a gloo group of its own, so that it never waits for a device.

    Args:
        device: Where to train; by default the GPU of this process if there is one.
        timeout: Seconds that processes wait for each other in a collective before they fail; by default 1,800. It
            counts from when they join, which is once.
        folder: The folder of the run, if it has one: what torch recorded of collectives goes there after a timeout.

    Raises:
        ConfigError: The timeout is no number above 0, or the processes joined with another one, or the device is not
            there.
    """

    def __init__(
        self,
        device: torch.device | str | None = None,
        *,
        timeout: float | None = None,
        folder: Path | None = None,
    ) -> None:
        _check_timeout(timeout)
        use_slurm_task()
        self.size = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = int(os.environ.get("RANK", "0"))
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self.device = self._default_device() if device is None else self._chosen(known_device(device))
        _check_gpu(self.device, self.local_rank)
        self._control: dist.ProcessGroup | None = None
        if dist.is_initialized():
            self.size, self.rank = dist.get_world_size(), dist.get_rank()
        elif self.size > 1:
            self._join(TIMEOUT_SECONDS if timeout is None else timeout, folder)
        if self.size > 1:
            self._control = _control_group(TIMEOUT_SECONDS if timeout is None else timeout)

    def _chosen(self, device: torch.device) -> torch.device:
        # With its number: tensors there have it, and a device without one equals none of theirs.
        return torch.device("cuda", self.local_rank) if device.type == "cuda" and device.index is None else device

    def _default_device(self) -> torch.device:
        if torch.cuda.is_available():
            return torch.device("cuda", self.local_rank)
        return torch.device("cpu")

    def _join(self, seconds: float, folder: Path | None) -> None:
        timeout, patience = timedelta(seconds=seconds), timedelta(seconds=max(seconds, MEETING_SECONDS))
        record_collectives(folder)
        backend = "gloo"
        if self.device.type == "cuda":
            # Else every process of a machine would make a CUDA context on the first GPU, and NCCL would meet there.
            torch.cuda.set_device(self.device)
            backend = "cpu:gloo,cuda:nccl"
        if store_outlives_processes():
            place: dict[str, Any] = {"store": join_rendezvous(self.rank, self.size, patience)}
            place |= {"rank": self.rank, "world_size": self.size}
        else:
            place = {}
        dist.init_process_group(backend, timeout=timeout, **place)
        _joined_with.append(seconds)
        atexit.register(leave_group_at_exit)

    @property
    def distributed(self) -> bool:
        """Whether there is more than one process."""
        return self.size > 1

    @property
    def is_main(self) -> bool:
        """Whether this is the first process of all."""
        return self.rank == 0

    @property
    def is_local_main(self) -> bool:
        """Whether this is the first process of its machine."""
        return self.local_rank == 0

    def reduce(self, values: list[float], how: str = "sum") -> list[float]:
        """Return `values` reduced over all processes, element by element; on the host."""
        if not self.distributed:
            return values
        # Counts of samples stay exact up to 2**53, and sums of losses are as long as Python's own.
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, REDUCTIONS[how], group=self._control)
        return [float(value) for value in tensor.tolist()]

    def make_largest(self, tensor: Tensor) -> None:
        """Make `tensor`, where it is, the largest that a process has, element by element; nobody waits for it."""
        if self.distributed:
            # Not by the control group, which is gloo's: for that the host would have to read the tensor first.
            dist.all_reduce(tensor, dist.ReduceOp.MAX)

    def share(self, value: Any) -> Any:
        """Return the main process's `value`: plain data, the same on all."""
        if not self.distributed:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self._control)
        return box[0]

    def gather_objects(self, value: Any) -> list[Any]:
        """Return every process's `value`, plain data and tensors on the host, in rank order."""
        values = [value] * self.size
        if self.distributed:
            dist.all_gather_object(values, value, group=self._control)
        return values

    def share_buffers(self, module: nn.Module, group: Any = None) -> None:
        """Give every process, or those of `group`, the first one's buffers, such as running statistics."""
        self._share(list(module.buffers()), group)

    def share_weights(self, module: nn.Module) -> None:
        """Give every process the first one's weights and buffers."""
        self._share([*(weight.detach() for weight in module.parameters()), *module.buffers()])

    def _share(self, tensors: list[Tensor], group: Any = None) -> None:
        if not self.distributed:
            return
        by_kind: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        for tensor in tensors:
            by_kind.setdefault((tensor.device, tensor.dtype), []).append(tensor)
        for alike in by_kind.values():
            # A broadcast for each running statistic would cost its latency hundreds of times.
            flat = torch.cat([tensor.reshape(-1) for tensor in alike])
            dist.broadcast(flat, group=group, group_src=0)
            parts = torch.split(flat, [tensor.numel() for tensor in alike])
            for tensor, part in zip(alike, parts, strict=True):
                tensor.copy_(part.view_as(tensor))

    def barrier(self) -> None:
        """Wait until every process has come here."""
        if self.distributed:
            dist.barrier(group=self._control)

    def gather(
        self, tensor: Tensor, padding_value: float | None = None, *, ranks: Sequence[int] | None = None
    ) -> Tensor:
        """Return the rows of `tensor` from every process, in rank order, or from those of `ranks`.

        With `padding_value`, the processes may hold different numbers of rows; the padding that makes them
        equal on the way is removed by length, so that rows which happen to equal it survive. A scalar gives
        one row per process.

        Raises:
            ConfigError: The numbers of rows differ and no `padding_value` was given.
        """
        if not self.distributed:
            return tensor
        tensor = tensor.reshape(1) if tensor.dim() == 0 else tensor
        lengths = self._lengths(tensor)
        if padding_value is None and len(set(lengths)) > 1:
            raise ConfigError(f"gather: the processes hold {lengths} rows; pass padding_value= to join them")
        longest = max(lengths)
        # `all_gather` takes the same shape from everybody.
        padded = tensor.new_full((longest, *tensor.shape[1:]), padding_value or 0)
        padded[: len(tensor)] = tensor
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(parts, padded.contiguous())
        return torch.cat([parts[rank][: lengths[rank]] for rank in (range(self.size) if ranks is None else ranks)])

    def _lengths(self, tensor: Tensor) -> list[int]:
        own = torch.tensor([len(tensor)])
        parts = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(parts, own, group=self._control)
        return [int(part) for part in parts]


_control_groups: list[dist.ProcessGroup] = []
_joined_with: list[float] = []
"""The timeout that this process joined the others with, if it did so itself."""
meshes: dict[Any, Any] = {}
"""The grids of ranks that were made, by their axes: each holds groups, and all trainers of the process share them."""


def known_device(device: torch.device | str) -> torch.device:
    """Return `device` as torch's, if this machine has one of its kind.

    Raises:
        ConfigError: There is no such kind, or torch cannot use it here.
    """
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"device={device!r} is no device; use 'cpu', 'cuda' or 'cuda:0'") from error
    remedy = "use device='cpu', or leave device out to train on what there is"
    if found.type == "cuda" and not torch.cuda.is_available():
        why = "it is built without CUDA" if torch.version.cuda is None else "there is no GPU, or no driver for it"
        raise ConfigError(f"device={str(device)!r}, but torch finds no CUDA device: {why}; {remedy}")
    if found.type == "meta":
        raise ConfigError(f"device='meta' has no numbers to train with; {remedy}")
    if found.type not in ("cpu", "cuda"):
        try:
            torch.empty(1, device=found)
        except (RuntimeError, NotImplementedError, AssertionError) as error:
            raise ConfigError(
                f"device={str(device)!r} cannot be used here: {str(error).partition('. ')[0]}; {remedy}"
            ) from error
    return found


def _check_gpu(device: torch.device, local_rank: int) -> None:
    if device.type != "cuda" or device.index is None or device.index < torch.cuda.device_count():
        return
    count = torch.cuda.device_count()
    found = f"this process finds {count} GPU{'' if count == 1 else 's'}"
    if device.index == local_rank and local_rank:
        raise ConfigError(
            f"process {local_rank} of this machine has no GPU of its own: {found}; start no more processes than GPUs, "
            "or pass device="
        )
    raise ConfigError(f"device='{device}', but {found}; use a number below {count}")


def _check_timeout(seconds: float | None) -> None:
    if seconds is None:
        return
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < math.inf:
        raise ConfigError(f"timeout={seconds!r} must be a number of seconds above 0")
    if _joined_with and _joined_with[0] != seconds:
        raise ConfigError(
            f"timeout={seconds:g}, but the processes have joined with {_joined_with[0]:g} seconds; give it to the "
            "first trainer of the program"
        )


def _control_group(seconds: float) -> "dist.ProcessGroup":
    # One group for all trainers of the process: every group holds sockets and threads of its own.
    if not _control_groups:
        _control_groups.append(dist.new_group(backend="gloo", timeout=timedelta(seconds=seconds)))
    return _control_groups[0]


def leave_group() -> None:
    """Leave the group of processes, if this one joined it."""
    if dist.is_initialized():
        dist.destroy_process_group()
        _control_groups.clear()
        _joined_with.clear()
        meshes.clear()


def leave_group_at_exit() -> None:
    """Leave the group, and wait until its threads rest: one that lets go of a tensor while Python ends aborts it."""
    if dist.is_initialized():
        leave_group()
        wait_for_threads()


def wait_for_threads(seconds: float = REST_SECONDS) -> None:
    """Wait until no other thread of this process has anything to do, and no longer than so many seconds."""
    deadline, rests = time.monotonic() + seconds, 0
    while rests < 3 and time.monotonic() < deadline:
        # Meanwhile this thread does not hold the lock of Python's that others may wait for.
        time.sleep(0.002)
        rests = 0 if _another_runs() else rests + 1


def _another_runs() -> bool:
    own = threading.get_native_id()
    for task in Path("/proc/self/task").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            if int(task.parent.name) != own and task.read_text().rpartition(")")[2].split()[0] == "R":
                return True
    return False


# Functions that only one process runs, or runs first: downloads, preparations, reports


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def local_process_zero_only(function: Callable[Arguments, Result]) -> Callable[Arguments, Result | None]:
    """Decorate a function so that the first process of each machine runs it; the others wait and get None.

    >>> @local_process_zero_only
    ... def greeting(name):
    ...     return f"hello {name}"
    >>> greeting("world")
    'hello world'
    """
    return _only(function, lambda processes: processes.is_local_main)


def world_process_zero_only(function: Callable[Arguments, Result]) -> Callable[Arguments, Result | None]:
    """Decorate a function so that the first process of all runs it; the others wait and get None."""
    return _only(function, lambda processes: processes.is_main)


def local_process_zero_first(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Decorate a function so that every process runs it, the first of each machine before the others."""

    @wraps(function)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        processes = Processes()
        if not processes.is_local_main:
            processes.barrier()
            return function(*args, **kwargs)
        try:
            return function(*args, **kwargs)
        # In a finally: a failure on the process that goes first must not leave the others waiting for it.
        finally:
            processes.barrier()

    return run


def _only(
    function: Callable[Arguments, Result], chosen: Callable[[Processes], bool]
) -> Callable[Arguments, Result | None]:
    @wraps(function)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result | None:
        # Asked at each call: when a module is decorated, the processes may not have been started yet.
        processes = Processes()
        try:
            return function(*args, **kwargs) if chosen(processes) else None
        finally:
            processes.barrier()

    return run
