"""One run of a trainer, from `train` to its end."""

from treadle.loop import Due, Stop
from treadle.parallel import Processes


class Run:
    """The parts that live as long as a run; each owns its state.

    Args:
        processes: The processes that the run is on.

    Attributes:
        stop: Whether the run is to end.
        due: What is due after which step and epoch.
    """

    def __init__(self, processes: Processes) -> None:
        self.stop = Stop(processes, self.wake)
        self.due = Due()

    def wake(self) -> None:
        """Have the loop look at what is due after the next step; called from other threads and signal handlers."""
        self.due.wake()
