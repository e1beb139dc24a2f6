"""Starting the processes of a training program from the program itself."""

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from treadle.errors import ConfigError
from treadle.parallel import Processes
from treadle.parallel.launching import HOST, check_that_others_can_start, free_port, start_group


def launch(
    main_func: Callable[..., Any],
    num_gpus_per_machine: int,
    num_machines: int = 1,
    machine_rank: int = 0,
    dist_url: str | None = None,
    args: tuple[Any, ...] = (),
    timeout: timedelta | float | None = None,
) -> None:
    """Call `main_func(*args)` in as many processes as were asked for, on this machine and others, and wait for them.

    It is called on every machine. One process in all is this one; where a launcher such as `torchrun` or
    `treadle train` has started the processes already, the function is called here, in each of them. Without GPUs
    the processes train on the CPU.

    Args:
        main_func: What to run; build model, data and trainer inside it.
        num_gpus_per_machine: Processes of each machine, one for each of its GPUs.
        num_machines: How many machines there are.
        machine_rank: Which of them this is, from 0.
        dist_url: Where the processes meet: `tcp://host:port` of the first machine, or "auto" on a single one.
        args: The arguments of `main_func`.
        timeout: How long processes wait for each other, in seconds if it is a number; by default 1,800 seconds.

    Raises:
        ConfigError: A number is none, the machines have no place to meet, or this process cannot start others.
    """
    for name, value, least in (
        ("num_gpus_per_machine", num_gpus_per_machine, 0),
        ("num_machines", num_machines, 1),
        ("machine_rank", machine_rank, 0),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(f"launch: {name}={value!r} must be a whole number from {least} up")
    if machine_rank >= num_machines:
        raise ConfigError(f"launch: machine_rank={machine_rank}, but there are {num_machines} machines, from 0 up")
    count = max(1, num_gpus_per_machine)
    world = count * num_machines
    if world == 1 or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        main_func(*args)
        return
    host, port = _meeting_place(dist_url, num_machines)
    check_that_others_can_start(f"launch: num_gpus_per_machine={num_gpus_per_machine}")
    start_group(
        _joined,
        (main_func, args, _seconds(timeout)),
        count,
        first=machine_rank * count,
        world=world,
        host=host,
        port=port,
    )


def _meeting_place(url: str | None, machines: int) -> tuple[str, int]:
    if url in (None, "auto") and machines == 1:
        return HOST, free_port()
    parts = urlsplit(url or "")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if parts.scheme != "tcp" or not host or not port:
        raise ConfigError(
            f"launch: dist_url={url!r} is no place where the processes of {machines} "
            f"machine{'' if machines == 1 else 's'} can meet; give 'tcp://host:port' of the first one"
            + (", or 'auto'" if machines == 1 else "")
        )
    return host, port


def _seconds(timeout: timedelta | float | None) -> float | None:
    return timeout.total_seconds() if isinstance(timeout, timedelta) else timeout


def _joined(main_func: Callable[..., Any], args: tuple[Any, ...], timeout: float | None) -> None:
    """Join the other processes, if there is a timeout to join them with, and run the program."""
    if timeout is not None:
        Processes(timeout=timeout)
    main_func(*args)
