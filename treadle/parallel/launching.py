"""Starting several processes from where one already runs, such as a notebook."""

import os
import socket
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

from treadle.errors import ConfigError
from treadle.parallel.processes import leave_group

HOST = "127.0.0.1"


def notebook_launcher(
    function: Callable[..., Any], args: tuple[Any, ...] = (), num_processes: int | None = None
) -> None:
    """Call `function(*args)` in several processes of this machine, and wait until all of them are done.

    In each one a trainer finds itself as if `torchrun` had started it: on its own GPU, or on the CPU with gloo. What
    the function returns is lost; write results to files. A single process calls it right here.

    Args:
        function: What to run; build model, data and trainer inside it.
        args: Its arguments.
        num_processes: How many processes; by default one for each GPU, or one.

    Raises:
        ConfigError: The number is no whole number above 0, or this process cannot start others: it is one of several
            already, or has used CUDA.
    """
    count = (torch.cuda.device_count() or 1) if num_processes is None else num_processes
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ConfigError(f"notebook_launcher: num_processes={count!r} must be a whole number above 0")
    if count == 1:
        function(*args)
        return
    _check_that_others_can_start(count)
    # Forked, since a function written in a notebook cannot be sent to a process that starts afresh.
    everything = (function, args, count, _free_port())
    start_processes(_run, args=everything, nprocs=count, start_method="fork")  # type: ignore[no-untyped-call]


def _check_that_others_can_start(count: int) -> None:
    if dist.is_initialized() and dist.get_world_size() == 1:
        # A group of this process alone, which a plan needed, would be in the way of theirs.
        leave_group()
    if dist.is_initialized() or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            f"notebook_launcher: num_processes={count}, but this process is one of several already; "
            "under torchrun, call the function itself"
        )
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise ConfigError(
            f"notebook_launcher: num_processes={count}, but this process has used CUDA, which the new ones cannot "
            "share; restart it, and touch the GPU only inside the function"
        )


def _run(rank: int, function: Callable[..., Any], args: tuple[Any, ...], count: int, port: int) -> None:
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in place.items()}, MASTER_ADDR=HOST)
    # The threads of the parent do not exist here, and its pool would wait for them; torchrun sets 1 as well.
    torch.set_num_threads(1)
    try:
        function(*args)
    finally:
        # A process that was forked ends without calling what `atexit` was given.
        leave_group()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
