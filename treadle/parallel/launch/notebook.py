"""Starting several processes from where one already runs, such as a notebook."""

import os
import platform
import socket
from collections.abc import Callable
from multiprocessing import get_all_start_methods
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

from treadle.errors import ConfigError, require_positive
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
    require_positive("notebook_launcher: num_processes", count)
    if count == 1:
        function(*args)
        return
    check_that_others_can_start(f"notebook_launcher: num_processes={count}")
    start_group(function, args, count)


def start_group(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    count: int,
    *,
    first: int = 0,
    world: int | None = None,
    host: str = HOST,
    port: int | None = None,
) -> None:
    """Call `function(*args)` in processes that are forked here, and wait until all of them are done.

    Args:
        function: What to run.
        args: Its arguments.
        count: How many processes are started here.
        first: How many there are on machines before this one.
        world: How many there are in all; by default those of here.
        host: Where they meet.
        port: Where they meet there; by default one that is free.
    """
    place = (first, count if world is None else world, host, free_port() if port is None else port)
    # Forked, since a function written in a notebook cannot be sent to a process that starts afresh.
    everything = (function, args, count, place)
    start_processes(_run, args=everything, nprocs=count, start_method="fork")  # type: ignore[no-untyped-call]


def check_that_others_can_start(asked: str) -> None:
    """Make sure that this process can start others.

    Args:
        asked: What was asked for, which a message begins with.

    Raises:
        ConfigError: It is one of several already, or has used CUDA, or the system has no forks.
    """
    if "fork" not in get_all_start_methods():
        raise ConfigError(
            f"{asked}, but these processes are forked, which {platform.system()} cannot; put the program into a file "
            "and start it with torchrun"
        )
    if dist.is_initialized() and dist.get_world_size() == 1:
        # A group of this process alone, which a plan needed, would be in the way of theirs.
        leave_group()
    if dist.is_initialized() or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            f"{asked}, but this process is one of several already; under torchrun, call the function itself"
        )
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise ConfigError(
            f"{asked}, but this process has used CUDA, which the new ones cannot "
            "share; restart it, and touch the GPU only inside the function"
        )


def _run(
    local: int, function: Callable[..., Any], args: tuple[Any, ...], count: int, place: tuple[int, int, str, int]
) -> None:
    first, world, host, port = place
    names = {"RANK": first + local, "LOCAL_RANK": local, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": count}
    os.environ.update({name: str(value) for name, value in names.items()}, MASTER_ADDR=host, MASTER_PORT=str(port))
    # The threads of the parent do not exist here, and its pool would wait for them; torchrun sets 1 as well.
    torch.set_num_threads(1)
    try:
        function(*args)
    finally:
        # A process that was forked ends without calling what `atexit` was given.
        leave_group()


def free_port() -> int:
    """Return a port of this machine that nobody uses."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
