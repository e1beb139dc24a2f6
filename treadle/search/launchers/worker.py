"""A worker of a search, `python -m treadle.search.launchers.worker`: does task after task, and dies with the search."""

import json
import os
import sys
import threading
import time
from typing import Any

from treadle.errors import NonFiniteError, TreadleError
from treadle.files.process_identity import process_start
from treadle.search.errors import StopSearchError
from treadle.search.launchers.base import FAILED, STOPPED, Ending, describe_error, run_task
from treadle.search.launchers.wire import ADDRESS, Connection, WireError, connect
from treadle.search.trial.reports import Metrics, PrunedError, ReportError
from treadle.search.trial.task import Task

# The worker's end of a trial's reports


_KINDS: dict[str, type[Exception]] = {
    "ReportError": ReportError,
    "NonFiniteError": NonFiniteError,
    "PrunedError": PrunedError,
}


class RemoteReporter:
    """Sends reports to the search, and waits for its answer: a report that returned is stored.

    Args:
        line: The line to the search.
        is_first: Whether this process speaks for the trial; of the others no final result is expected.
    """

    def __init__(self, line: Connection, *, is_first: bool = True) -> None:
        self._line = line
        self.finished = not is_first

    def intermediate(self, metrics: Metrics, step: int | None) -> bool:
        """Report an intermediate result, and return whether the trial is to stop."""
        return bool(self._asked({"intermediate": metrics, "step": step})["stop"])

    def final(self, metrics: Metrics) -> None:
        """Report the final result."""
        self._asked({"final": metrics})
        self.finished = True

    def _asked(self, message: dict[str, Any]) -> dict[str, Any]:
        self._line.send(message)
        answer = self._line.receive()
        if "refused" in answer:
            raise _KINDS.get(answer["refused"], ReportError)(answer["message"])
        return answer


PATH = "TREADLE_SEARCH_PATH"
"""The environment variable with the search's module path, as JSON: what it could import, its workers can."""
PARENT = "TREADLE_SEARCH_PARENT"
"""The environment variable with the number of the process that a worker must not outlive."""


def main() -> None:
    """Do the tasks that the search hands out, until it says goodbye or is gone."""
    sys.path[:] = json.loads(os.environ.get(PATH, "null")) or sys.path
    if PARENT in os.environ:
        threading.Thread(target=_exit_with_parent, args=(int(os.environ[PARENT]),), daemon=True).start()
    line = connect(os.environ[ADDRESS])
    try:
        line.send({"ready": os.getpid(), "rank": int(os.environ.get("RANK", "0"))})
        while (message := line.receive()).get("task") is not None:
            ending = _done(message["task"], line)
            line.send({"ended": ending.state, "error": ending.error})
    except WireError:
        # The search was killed: what it did not hear of, it will have done again.
        os._exit(1)


def _done(data: dict[str, object], line: Connection) -> Ending:
    try:
        task = Task.decoded(data)
    except TreadleError as error:
        return Ending(FAILED, describe_error(error))
    is_first = os.environ.get("RANK", "0") == "0"
    # All processes of a trial have the same weights, and one writes them.
    try:
        return run_task(task, RemoteReporter(line, is_first=is_first), leaves=is_first)
    except StopSearchError as error:
        return Ending(STOPPED, describe_error(error))


def _exit_with_parent(search: int) -> None:
    # Under torchrun the parent is not the search, and may be killed before it.
    parent = os.getppid()
    while process_start(search) is not None and os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)


if __name__ == "__main__":
    main()
