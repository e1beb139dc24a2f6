"""Which process of which machine somebody is, so that others can tell whether it is still there."""

import os
import socket
import sys
from contextlib import suppress
from pathlib import Path

TABLE = Path("/proc")
"""Where Linux has its table of processes."""


def machine() -> str:
    """Return the name of this machine since it was last started."""
    with suppress(OSError):
        return f"{socket.gethostname()}:{(TABLE / 'sys/kernel/random/boot_id').read_text().strip()}"
    return socket.gethostname()


def process_start(process: int) -> str | None:
    """Return when a process of this machine was started, in the words of the system; None if it has ended.

    Where the system does not say when, it is empty for a process that is there.
    """
    if sys.platform == "win32":
        return _start_on_windows(process)
    try:
        text = (TABLE / str(process) / "stat").read_text()
    except OSError:
        return _exists(process)
    # What comes before the last bracket is its name, which may hold anything.
    fields = text.rpartition(")")[2].split()
    # The third field is the state: a zombie has ended, and waits for its parent to ask.
    return None if fields[0] in "ZX" else fields[19]


def _exists(process: int) -> str | None:
    if (TABLE / "self").exists():
        return None
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return None
    except OSError:
        return ""
    return ""


if sys.platform == "win32":
    _QUERY, _DENIED, _STILL_ACTIVE = 0x1000, 5, 259  # of the Windows API, by their names there without underscores

    def _start_on_windows(process: int) -> str | None:
        import ctypes

        # Never by a signal: 0, which asks elsewhere, is Ctrl-C there, and any other ends the process.
        kernel = ctypes.WinDLL("kernel32", use_last_error=True)
        kernel.OpenProcess.restype = ctypes.c_void_p
        handle = ctypes.c_void_p(kernel.OpenProcess(_QUERY, False, process))
        if not handle:
            return "" if ctypes.get_last_error() == _DENIED else None
        status, times = ctypes.c_ulong(), [ctypes.c_ulonglong() for _ in range(4)]
        try:
            kernel.GetExitCodeProcess(handle, ctypes.byref(status))
            kernel.GetProcessTimes(handle, *map(ctypes.byref, times))
        finally:
            kernel.CloseHandle(handle)
        return str(times[0].value) if status.value == _STILL_ACTIVE else None
