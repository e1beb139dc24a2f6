"""One process of several that `treadle --nproc` started: it dies with its launcher, and tells it how it ended."""

import ctypes
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType

from treadle.runs.preemption import PreemptedExit, handled_signals, known_signals

LAUNCHER = "TREADLE_LAUNCHER"
"""The environment variable by which a process knows its launcher: its number, a colon, and the folder for reports.

The number is 0 where the launcher is no process of this machine, and somebody else ends its processes.
"""

REFUSED, FAILED, LEFT = "refused", "failed", "left"
"""How a process may end other than well: by a mistake of the user's, by an error, or asked to leave."""

_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux
_EARLY = known_signals("SIGTERM", "SIGUSR1", "SIGBREAK")


@dataclass(frozen=True)
class Report:
    """How a process ended.

    Attributes:
        rank: Its number.
        state: One of the words above.
        message: What it had to say; for an error, its traceback.
        time: When it said so.
    """

    rank: int
    state: str
    message: str
    time: float


def is_worker() -> bool:
    """Whether a launcher of this command line started this process."""
    return LAUNCHER in os.environ


def in_process_group() -> bool:
    """Whether anybody, torchrun for one, started this process as one of several."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def is_first() -> bool:
    """Whether this is the process that speaks for all."""
    return int(os.environ.get("RANK", "0")) == 0


@contextmanager
def ready() -> Iterator[None]:
    """Run a command that trains: a signal outside of training ends it in good order, and so does its launcher's death.

    While it trains, the trainer listens to these signals itself.
    """
    launcher = int(os.environ[LAUNCHER].partition(":")[0]) if is_worker() else 0
    if launcher:
        _exit_with_parent(launcher)
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _exit_now) for number in handled_signals(_EARLY)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _exit_now(number: int, frame: FrameType | None) -> None:
    raise PreemptedExit("asked to leave while nothing was under way; start the same command to resume")


def _exit_with_parent(launcher: int) -> None:
    """Have this process killed when its launcher is gone: the same command, started again, needs the folder."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_SET_DEATH_SIGNAL, int(signal.SIGKILL))
    else:
        threading.Thread(target=_watch, args=(launcher,), name="treadle-launcher", daemon=True).start()
    # The launcher may have died before the line above took effect, and then no signal comes.
    if os.getppid() != launcher:
        os._exit(1)


def _watch(launcher: int) -> None:
    while os.getppid() == launcher:
        time.sleep(0.5)
    os._exit(1)


def report(state: str, message: str) -> bool:
    """Tell the launcher how this process ends; return whether there is one."""
    if not is_worker():
        return False
    own = Report(int(os.environ.get("RANK", "0")), state, message, time.time())
    folder = Path(os.environ[LAUNCHER].partition(":")[2])
    part = folder / f"{own.rank}.part"
    part.write_text(json.dumps(asdict(own)))
    # Renamed when it is whole: the launcher may look at any time, and reads `*.json` only.
    os.replace(part, folder / f"{own.rank}.json")
    return True


def reports(folder: Path) -> list[Report]:
    """Return what the processes of this machine told, in the order of their numbers."""
    found = [Report(**json.loads(path.read_text())) for path in folder.glob("*.json")]
    return sorted(found, key=lambda report: report.rank)
