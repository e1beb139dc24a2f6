"""A worker process, `python -m treadle.search.worker`: does one task after the other, and dies with the search."""

import json
import os
import sys
import threading
import time

from treadle.errors import TreadleError
from treadle.search.errors import StopSearchError
from treadle.search.launchers.base import FAILED, STOPPED, Ending, error_of, perform
from treadle.search.launchers.remote_reporter import RemoteReporter
from treadle.search.launchers.wire import ADDRESS, Line, WireError, connect
from treadle.search.tasks import Task

PATH = "TREADLE_SEARCH_PATH"
"""The environment variable with the search's module path, as JSON: what it could import, its workers can."""
PARENT = "TREADLE_SEARCH_PARENT"
"""The environment variable with the number of the process that a worker must not outlive."""


def main() -> None:
    """Do the tasks that the search hands out, until it says goodbye or is gone."""
    sys.path[:] = json.loads(os.environ.get(PATH, "null")) or sys.path
    if PARENT in os.environ:
        threading.Thread(target=_die_with, args=(int(os.environ[PARENT]),), daemon=True).start()
    line = connect(os.environ[ADDRESS])
    try:
        line.send({"ready": os.getpid(), "rank": int(os.environ.get("RANK", "0"))})
        while (message := line.receive()).get("task") is not None:
            ending = _done(message["task"], line)
            line.send({"ended": ending.state, "error": ending.error})
    except WireError:
        # The search was killed: what it did not hear of, it will have done again.
        os._exit(1)


def _done(data: dict[str, object], line: Line) -> Ending:
    try:
        task = Task.decoded(data)
    except TreadleError as error:
        return Ending(FAILED, error_of(error))
    is_first = os.environ.get("RANK", "0") == "0"
    # All processes of a trial have the same weights, and one writes them.
    try:
        return perform(task, RemoteReporter(line, is_first=is_first), leaves=is_first)
    except StopSearchError as error:
        return Ending(STOPPED, error_of(error))


def _die_with(search: int) -> None:
    # Under torchrun the parent is not the search, and may be killed before it.
    parent = os.getppid()
    while _is_there(search) and os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)


def _is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


if __name__ == "__main__":
    main()
