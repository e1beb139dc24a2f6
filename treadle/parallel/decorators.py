"""Functions that only one process runs, or runs first: downloads, preparations, reports.

Outside a launch by `torchrun` or `notebook_launcher` there is one process, and a decorated function is called as it
is. The others wait until it is done, also if it fails, so that nobody waits for ever.
"""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from treadle.parallel.processes import Processes

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
