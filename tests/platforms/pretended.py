"""Other systems, as far as this one can pretend to be them: what they do not have is taken away, and what they refuse.

Run as `python -m tests.platforms.pretended windows program.py arguments...`: the program then runs on that system.
"""

import builtins
import ctypes
import errno
import fcntl
import multiprocessing
import os
import resource
import runpy
import select
import shutil
import signal
import sys
import sysconfig
import time
import types
from pathlib import Path
from typing import Any

import rich.console
import torch
import torch._dynamo
import torch.distributed.elastic.agent.server.local_elastic_agent
import torch.distributed.fsdp
import torch.utils.data
import torchmetrics
import typer  # before the system is another one: what others choose by it is not what is tested

NOT_ON_WINDOWS = {
    os: (
        *("O_CLOEXEC", "O_DIRECTORY", "O_NONBLOCK", "fork", "getuid", "geteuid", "killpg", "pread", "pwrite", "setsid"),
        *("getloadavg", "register_at_fork", "sched_getaffinity", "statvfs", "sysconf", "uname", "waitid", "getpgid"),
        *("mkfifo", "fchmod", "posix_fadvise", "forkpty", "chown", "nice", "wait"),
    ),
    signal: (
        *("SIGUSR1", "SIGUSR2", "SIGHUP", "SIGKILL", "SIGALRM", "SIGCHLD", "SIGPIPE", "SIGSTOP", "SIGCONT", "SIGQUIT"),
        *("pthread_sigmask", "siginterrupt", "pthread_kill", "setitimer", "alarm", "sigwait"),
    ),
    select: ("poll", "epoll"),
    time: ("tzset",),
}
"""What modules of both systems have on this one alone."""
FORBIDDEN = set('<>:"|?*')
"""Characters that no file of Windows has in its name."""


def pretend_windows() -> None:
    """Be Windows: without these modules and names, and with a file system that refuses what that one refuses."""
    sysconfig.get_config_vars()
    assert all((rich.console, torchmetrics, typer))
    msvcrt: Any = types.ModuleType("msvcrt")
    msvcrt.LK_NBLCK = 2
    msvcrt.locking = _locking
    ctypes.WinDLL = lambda name, use_last_error: _Kernel()  # type: ignore[attr-defined]
    ctypes.get_last_error = lambda: 0  # type: ignore[attr-defined]
    for module, names in NOT_ON_WINDOWS.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    multiprocessing.get_all_start_methods = lambda: ["spawn"]
    _refuse_open_files()
    sys.modules["msvcrt"] = msvcrt
    for gone in ("fcntl", "resource", "termios", "pwd", "grp"):
        sys.modules[gone] = None  # type: ignore[assignment]
    sys.platform = "win32"


def _locking(descriptor: int, mode: int, size: int) -> None:
    assert os.lseek(descriptor, 0, os.SEEK_CUR) >= 2**30, "what is locked cannot be read on Windows"
    try:
        flock(descriptor, LOCK)
    except BlockingIOError as error:
        raise PermissionError(errno.EACCES, "Permission denied") from error


flock, LOCK = fcntl.flock, fcntl.LOCK_EX | fcntl.LOCK_NB
stat_folder = Path("/proc")


class _Kernel:
    """What is asked of kernel32: a process by its number, when it began, and whether it still runs."""

    class OpenProcess:
        restype: Any = None

        def __new__(cls, access: int, inherit: bool, process: int) -> Any:
            return process if (stat_folder / str(process)).exists() else 0

    def GetExitCodeProcess(self, handle: Any, status: Any) -> None:  # noqa: N802 - its name
        status._obj.value = 259

    def GetProcessTimes(self, handle: Any, *times: Any) -> None:  # noqa: N802 - its name
        fields = (stat_folder / str(handle.value) / "stat").read_text().rpartition(")")[2].split()
        times[0]._obj.value = int(fields[19])

    def CloseHandle(self, handle: Any) -> None:  # noqa: N802 - its name
        assert handle


def _refuse_open_files() -> None:
    """Have the file system refuse what Windows does: folders to be opened, open files to be moved or removed."""
    really = {name: getattr(os, name) for name in ("open", "fsync", "replace", "rename", "unlink", "remove", "rmdir")}
    flags_of, kill = fcntl.fcntl, os.kill

    def open_file(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        _check_name(path)
        if os.path.isdir(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return int(really["open"](path, flags, *rest, **named))

    def fsync(descriptor: int) -> None:
        if flags_of(descriptor, fcntl.F_GETFL) & 3 == os.O_RDONLY:
            raise OSError(errno.EBADF, "Bad file descriptor")
        really["fsync"](descriptor)

    def closed(name: str) -> Any:
        def change(path: Any, *rest: Any, **named: Any) -> Any:
            if named.get("dir_fd") is None:
                for one in (path, *(rest if name in ("replace", "rename") else ())):
                    _check_name(one)
                    _check_closed(one)
            if name in ("replace", "rename") and os.path.isdir(rest[0]):
                raise PermissionError(errno.EACCES, "Access is denied", str(rest[0]))
            return really[name](path, *rest, **named)

        return change

    def kill_process(process: int, number: int) -> None:
        raise AssertionError(f"os.kill({process}, {number}) ends a process on Windows, or sends it Ctrl-C")

    os.open, os.fsync, os.kill = open_file, fsync, kill_process
    for name in ("replace", "rename", "unlink", "remove", "rmdir"):
        setattr(os, name, closed(name))
    shutil._use_fd_functions = False  # type: ignore[attr-defined]
    assert kill is not os.kill


def _check_name(path: Any) -> None:
    if isinstance(path, (str, os.PathLike)) and FORBIDDEN & set(os.fspath(path)):
        raise OSError(errno.EINVAL, "Invalid argument", str(path))


def _check_closed(path: Any) -> None:
    """Refuse to change a file that this process has open, or maps into its memory; or a folder with such a file."""
    place = os.path.realpath(path)
    own = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
    with builtins.open("/proc/self/maps") as file:
        own += [line.split(maxsplit=5)[5].strip() for line in file if line.count("/")]
    if any(one == place or one.startswith(f"{place}/") for one in own):
        raise PermissionError(errno.EACCES, "The process cannot access the file: it is in use", str(path))


def pretend_macos() -> None:
    """Be macOS: no table of processes, no affinity to cores, and processes start afresh."""
    from treadle.files import process_identity
    from treadle.memory import device
    from treadle.recsys.bench import cost

    assert device
    for module, name in ((os, "sched_getaffinity"), (select, "epoll"), (resource, "RUSAGE_THREAD")):
        delattr(module, name)
    sys.platform = "darwin"
    process_identity.TABLE = cost.PROCESS = Path("/nowhere")
    multiprocessing.set_start_method("spawn")


if __name__ == "__main__":
    system, program, *arguments = sys.argv[1:]
    {"windows": pretend_windows, "macos": pretend_macos, "this": lambda: None}[system]()
    sys.argv = [program, *arguments]
    if program.endswith(".py"):
        sys.path.insert(0, os.path.dirname(os.path.abspath(program)))
        runpy.run_path(program, run_name="__main__")
    else:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    torch.set_num_threads(1)
