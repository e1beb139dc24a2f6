"""Which process of which machine somebody is, so that others can tell whether it is still there."""

import os
import socket
from contextlib import suppress
from pathlib import Path


def machine() -> str:
    """Return the name of this machine since it was last started."""
    with suppress(OSError):
        return f"{socket.gethostname()}:{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}"
    return socket.gethostname()


def process_start(process: int) -> str | None:
    """Return when a process of this machine was started, in the words of the system; None if there is none."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return _exists(process)
    fields = text.rpartition(")")[2].split()
    # The third field is the state: a zombie has ended, and waits for its parent to ask.
    return None if fields[0] in "ZX" else fields[19]


def _exists(process: int) -> str | None:
    if Path("/proc/self/stat").exists():
        return None
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return None
    except OSError:
        return ""
    return ""
