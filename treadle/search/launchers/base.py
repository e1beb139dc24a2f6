"""What starts trials, and how they end."""

import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from treadle.errors import NonFiniteError
from treadle.search.errors import StopSearchError
from treadle.search.trial.reports import PrunedError, ReportError
from treadle.search.trial.task import Task
from treadle.search.trial.trial import RunningTrial

COMPLETE, PRUNED, FAILED, STOPPED = "complete", "pruned", "failed", "stopped"


@dataclass(frozen=True)
class Ending:
    """How a trial ended.

    Attributes:
        state: "complete", "pruned" or "failed"; "stopped" if the trial ends the search.
        error: Of a failure, or of what ends the search, its kind, its message and its traceback, as text.
    """

    state: str
    error: Mapping[str, str] | None = None

    @staticmethod
    def failed(kind: str, message: str) -> "Ending":
        """Return the end of a trial that could not say itself what went wrong."""
        return Ending(FAILED, {"kind": kind, "message": message, "traceback": f"{kind}: {message}"})


Ended = Callable[[RunningTrial, Ending], None]


class Launcher(ABC):
    """Starts trials, passes their reports on, and says when they have ended.

    Args:
        workers: How many trials may run at a time.
        ended: Called with each trial that has ended, in the thread that calls `start` or `wait`.
    """

    def __init__(self, workers: int, ended: Ended) -> None:
        self.workers = workers
        self.ended = ended

    @property
    @abstractmethod
    def running(self) -> int:
        """How many trials are running."""

    @property
    def has_room(self) -> bool:
        """Whether one more trial may be started."""
        return self.running < self.workers

    @abstractmethod
    def start(self, task: Task, session: RunningTrial) -> None:
        """Begin a trial."""

    @abstractmethod
    def wait(self, seconds: float) -> None:
        """Deal with what trials say, for so many seconds at most; return once something has happened."""

    @abstractmethod
    def close(self) -> None:
        """End everything that was started."""


def describe_error(error: BaseException) -> dict[str, str]:
    """Return an error as plain data."""
    return {
        "kind": type(error).__name__,
        "message": str(error),
        "traceback": "".join(traceback.format_exception(error)),
    }


def run_task(task: Task, reporter: Any, *, leaves: bool = True) -> Ending:
    """Do a task in this process, and return how it ended; `leaves` says whether it leaves behind what it is to.

    Raises:
        StopSearchError: The trial ends the search.
    """
    try:
        task.run(reporter, leaves=leaves)
    except PrunedError:
        return Ending(PRUNED)
    except StopSearchError:
        raise
    except Exception as error:
        return Ending(FAILED, describe_error(error))
    return Ending(COMPLETE)


def answer_report(session: RunningTrial, message: Mapping[str, Any]) -> dict[str, Any]:
    """Take the report of a worker, and return what it is told."""
    try:
        if "final" in message:
            session.final(message["final"])
            return {"stop": False}
        return {"stop": session.intermediate(message["intermediate"], message["step"])}
    except (ReportError, NonFiniteError, PrunedError) as error:
        return {"refused": type(error).__name__, "message": str(error)}


# Trials in the process itself, one after the other: nothing to serialise, and a debugger stops in them


class Inline(Launcher):
    """Runs each trial to its end when it is started."""

    @property
    def running(self) -> int:
        """How many trials are running: none, once `start` has returned."""
        return 0

    def start(self, task: Task, session: RunningTrial) -> None:
        """Run a trial."""
        self.ended(session, run_task(task, session))

    def wait(self, seconds: float) -> None:
        """Return at once: nothing is running."""

    def close(self) -> None:
        """Return at once: nothing is open."""
