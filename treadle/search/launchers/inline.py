"""Trials in the process itself, one after the other: nothing to serialise, and a debugger stops in them."""

from treadle.search.launchers.base import Launcher, perform
from treadle.search.session import Session
from treadle.search.tasks import Task


class Inline(Launcher):
    """Runs each trial to its end when it is started."""

    @property
    def running(self) -> int:
        """How many trials are running: none, once `start` has returned."""
        return 0

    def start(self, task: Task, session: Session) -> None:
        """Run a trial."""
        self.ended(session, perform(task, session))

    def wait(self, seconds: float) -> None:
        """Return at once: nothing is running."""

    def close(self) -> None:
        """Return at once: nothing is open."""
