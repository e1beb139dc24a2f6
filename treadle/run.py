"""One run of a trainer, from `train` to its end."""

from typing import TYPE_CHECKING

from treadle.execution import Execution
from treadle.loop import Due, Stop

if TYPE_CHECKING:
    from treadle.trainer import Trainer


class Run:
    """The parts that live as long as a run; each owns its state.

    Args:
        trainer: Whose run it is.

    Attributes:
        stop: Whether the run is to end.
        due: What is due after which step and epoch.
        execution: How updates are carried out.
    """

    def __init__(self, trainer: "Trainer") -> None:
        self.stop = Stop(trainer.processes, self.wake)
        self.due = Due()
        self.execution = Execution(trainer)

    def wake(self) -> None:
        """Have the loop look at what is due after the next step; called from other threads and signal handlers."""
        self.due.wake()
