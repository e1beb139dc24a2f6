"""A process that has imported what most programs of the tests need, and is forked for each of them.

A start of Python with torch, its compiler and treadle takes three seconds of a core, nearly all of it imports; a fork
takes a tenth of that. What is forked goes on as `python` would have, with streams, folder, environment and arguments of
its own, to the interpreter's ordinary end. All that are forked from one server share one order of sets of words.
"""

import gc
import json
import os
import runpy
import signal
import socket
import sys
import tempfile
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.forking.pages import keep_freed_memory, use_large_pages

IMPORTED = (
    "hydra",
    "numpy",
    "safetensors.torch",
    "torch._dynamo",
    "torch.distributed.run",
    "torchmetrics",
    "treadle.cli.application",
    "treadle.parallel.launch.torchrun",
    "treadle.cli.train",
    "treadle.engine",
    "treadle.nas",
    "treadle.recsys",
    "treadle.trainer",
)
SYSTEMS = (
    "numpy",
    "rich.console",
    "torch._dynamo",
    "torch.distributed.elastic.agent.server.local_elastic_agent",
    "torch.distributed.fsdp",
    "torch.utils.data",
    "torchmetrics",
    "typer",
)
"""What is imported where the package itself is to be imported as on another system."""
LARGEST = 1 << 20
"""The most bytes of a request; nearly all of one is the environment."""
STREAMS = 3
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""Signals to the group of a launcher are not for the process that forks its workers."""
_SET_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of Linux


def main() -> None:
    """Serve the socket whose number the command line gives; a forked process becomes what was asked for.

    After the number `--without-treadle` may stand.
    """
    keep_freed_memory()
    for name in SYSTEMS if sys.argv[2:] == ["--without-treadle"] else IMPORTED:
        import_module(name)
    with suppress(ModuleNotFoundError):
        # What torch's compiler would else import at exit, where it makes Python forget that Ctrl-C ended the program.
        import_module("tabulate")
    # A collection in a forked process would write to, and so copy, every page that holds an object of an import.
    gc.freeze()
    use_large_pages()
    # As in the tests themselves: the machine, which keeps what is written, outlives every process.
    os.fsync = lambda descriptor: None
    # What follows the entry for this module and those of the environment is what any start has.
    found = sys.path[1 + len(_own_paths(os.environ)) :]
    request, streams = serve(socket.socket(fileno=int(sys.argv[1])), keep=True)
    if request["launches"]:
        request, streams = _with_workers(request, streams)
    become(request, streams, found)
    run(request["arguments"])


def serve(requests: socket.socket, *, keep: bool) -> tuple[dict[str, Any], list[int]]:
    """Fork a process for each request until nobody asks any more; return in forked processes alone.

    Args:
        requests: Where they come from, with the streams, and the file that takes the status if `keep`.
        keep: Whether a process between this one and the forked one waits for its end and says how it was. Else the
            forked one is given up, so that the launcher becomes its parent.
    """
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, LARGEST, STREAMS + 1)
        if not message:
            os._exit(0)
        _take_leave_of_the_ended()
        between = os.fork()
        if not between:
            # Known before the fork: the child may come to run only after this process is gone.
            giving_up = None if keep else os.getpid()
            child = os.fork()
            if not child:
                request = json.loads(message)
                _report_for_duty(requests, request, giving_up)
                for descriptor in descriptors[STREAMS:]:
                    os.close(descriptor)
                return request, descriptors[:STREAMS]
            if keep:
                _tell_status(child, requests, descriptors)
            os._exit(0)
        for descriptor in descriptors:
            os.close(descriptor)
        if not keep:
            os.waitpid(between, 0)


def _take_leave_of_the_ended() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _report_for_duty(requests: socket.socket, request: dict[str, Any], given_up_by: int | None) -> None:
    """Say the number of this process once signals may come: in the session, and with the parent, that it keeps."""
    if request["new_session"]:
        os.setsid()
    while os.getppid() == given_up_by:
        time.sleep(0.001)
    requests.send(str(os.getpid()).encode())
    requests.close()


def _tell_status(child: int, requests: socket.socket, descriptors: list[int]) -> None:
    # Nothing of the program's is kept open beyond its end, and no signal for its group comes here.
    os.setsid()
    requests.close()
    for descriptor in descriptors[:STREAMS]:
        os.close(descriptor)
    _, status = os.waitpid(child, 0)
    os.write(descriptors[STREAMS], str(os.waitstatus_to_exitcode(status)).encode())


def _with_workers(request: dict[str, Any], streams: list[int]) -> tuple[dict[str, Any], list[int]]:
    """Have the workers of a launcher forked too, from a process that has not seen what the launcher does.

    Returns:
        In the launcher what it got, in each of its workers what is asked of that one.
    """
    import ctypes

    from tests.forking.workers import fork_workers

    own, others = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork():
        others.close()
        # Workers are given up by the process that forked them; this one takes their place as parents.
        assert ctypes.CDLL(None, use_errno=True).prctl(_SET_SUBREAPER, 1) == 0
        fork_workers(own)
        return request, streams
    own.close()
    for descriptor in streams:
        os.close(descriptor)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in IGNORED}
    request, streams = serve(others, keep=False)
    for number, handler in before.items():
        signal.signal(number, handler)
    return request, streams


def become(request: dict[str, Any], streams: list[int], found: list[str]) -> None:
    """Take over the streams, the folder and the environment, as a process has them when it starts.

    Args:
        request: What was asked for.
        streams: Standard input, output and error.
        found: The entries of `sys.path` that depend on neither.
    """
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[:] = ["", *_own_paths(os.environ), *found]
    import numpy
    import torch

    # As in a process that has just been started, nobody knows what an unseeded generator draws.
    numpy.random.seed()
    torch.default_generator.seed()
    torch.set_num_threads(int(request["environment"].get("OMP_NUM_THREADS", os.cpu_count() or 1)))


def _own_paths(environment: Any) -> list[str]:
    return [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]


def run(arguments: list[str]) -> None:
    """Run what the arguments of `python` name: `-m` and a module, `-c` and a program, or the path of a script."""
    if arguments[0] == "-u":
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        arguments = arguments[1:]
    if arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
            file.write(arguments[1])
            file.flush()
            runpy.run_path(file.name, run_name="__main__")
        return
    if arguments[0] != "-m":
        sys.path[0] = str(Path(arguments[0]).resolve().parent)
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")
        return
    name = arguments[1]
    sys.path[0] = os.getcwd()
    sys.argv = arguments[1:]
    if name in sys.modules and not hasattr(sys.modules[name], "__path__"):
        # To run what is imported already is worth a warning to runpy.
        del sys.modules[name]
    runpy.run_module(name, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
