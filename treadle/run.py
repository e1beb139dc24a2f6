"""One run of a trainer, from `train` to its end."""

from typing import TYPE_CHECKING

from treadle.checkpoint.checkpointer import NoCheckpointer
from treadle.data.streams import Streams
from treadle.execution import Execution
from treadle.loop import Due, Evaluator, Log, Stop, Updater
from treadle.parallel.shared_loss import SharedLoss

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
        updater: What makes the updates, and owns what they leave behind.
        log: What reads losses from the device, and acts on those that are not finite.
        shared_loss: Where losses are computed, so that the processes share their gradients.
        streams: What its batches are drawn from.
        evaluator: What evaluates and predicts.
        state: What the run is made of where it stands.
        checkpointer: What keeps it, and brings it back.
        epoch_is_cut: Whether the limit of steps ended the epoch under way before its data did.
    """

    def __init__(self, trainer: "Trainer") -> None:
        self.stop = Stop(trainer.processes, self.wake)
        self.due = Due()
        self.execution = Execution(trainer)
        self.streams: Streams = trainer.create_streams()
        self.evaluator = Evaluator(trainer)
        self.shared_loss = SharedLoss(trainer.parallel)
        self.updater: Updater = trainer.create_updater()
        self.log: Log = trainer.create_log()
        self.state = trainer.create_state()
        self.checkpointer = NoCheckpointer()
        self.epoch_is_cut = False

    def wake(self) -> None:
        """Have the loop look at what is due after the next step; called from other threads and signal handlers."""
        self.due.wake()
