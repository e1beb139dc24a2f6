"""Whether a run is to end: what callbacks and signals ask for, agreed among its processes."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from treadle.errors import StopTrainingError
from treadle.parallel import Processes
from treadle.runs.preemption import SignalHandler, leave


class Stop:
    """Requests to end a run in good order, and what came of them.

    Args:
        processes: The processes of the run, which stop together.
        wake: Called when a signal comes, so that the loop looks at what is due after the next step.

    Attributes:
        requested: Why somebody on this process asked for the end; None while nobody did.
        looping: Whether the loop over epochs is under way: other processes would wait for one that left it alone.
        stopped: Whether the loop ended because somebody asked for it, or had ended so when the run was started.
        pauses: Whether a run that was stopped resumes when it is started again.
        over: Why the run is over for good, None while it is not; it is saved with the run.
        reason: Why `train` came back.
        left: Whether the run was saved and left on a signal, which has been said.
    """

    def __init__(self, processes: Processes, wake: Callable[[], None]) -> None:
        self._processes, self._wake = processes, wake
        self.requested: str | None = None
        self._for_good = False
        self._signal = 0
        self.looping = self.stopped = self.pauses = False
        self.over: str | None = None
        self.reason, self.left = "", False

    def request(self, reason: str, *, for_good: bool = False) -> None:
        """Ask for the end, at the next point where the processes agree; see `Trainer.request_stop`."""
        self.requested = self.requested or reason
        self._for_good = self._for_good or for_good

    def take(self, error: StopTrainingError) -> bool:
        """Turn a callback's wish to stop into a request where other processes would wait for this one."""
        if not (self.looping and self._processes.distributed):
            return False
        self.request(str(error) or "a callback asked to stop", for_good=True)
        return True

    @contextmanager
    def together(self) -> Iterator[None]:
        """Let a method ask to stop: on several processes, at the next point where they agree."""
        try:
            yield
        except StopTrainingError as error:
            if not self.take(error):
                raise

    def agree(self) -> None:
        """Stop if any process wants to; every process must come here together.

        Raises:
            StopTrainingError: One of them wants to.
        """
        wanted, for_good = self._processes.reduce([float(self.requested is not None), float(self._for_good)], "max")
        if wanted:
            self.pauses = not for_good
            raise StopTrainingError(self.requested or "another process asked to stop")

    def begin_loop(self) -> None:
        """Take note that the loop begins; one that was asked to stop before it does not.

        Raises:
            StopTrainingError: Somebody asked for the end, such as a search whose budget the run has had already.
        """
        self.looping, self.stopped = True, False
        if self.requested is not None and not self._processes.distributed:
            self.agree()

    def end_loop(self, reason: str) -> None:
        """Take note that the loop was stopped, and whether the run is over by that."""
        self.over = None if self.pauses else reason
        self.looping, self.stopped = False, True

    # Signals ------------------------------------------------------------------------------------------------

    def handling_signals(self, *, can_save: bool) -> AbstractContextManager[Any]:
        """Return the context in which signals ask the run to save itself and leave, if it can be saved."""
        return SignalHandler(self.on_signal) if can_save else nullcontext()

    def on_signal(self, number: int) -> None:
        """Take note of a signal that asks the run to leave; called from its handler."""
        # Nothing more in a signal handler: it may interrupt the loop anywhere, inside of a save too.
        self._signal = number
        self._wake()

    def is_asked_to_leave(self) -> bool:
        """Whether a signal asked this process to save the run and leave."""
        return self._signal != 0

    def agree_to_leave(self) -> int:
        """Return the signal that asked any process to leave, 0 if none did; every process must come here together."""
        return int(self._processes.reduce([float(self._signal)], "max")[0])

    def leave(self, number: int, message: str) -> None:
        """Leave the run that was saved.

        Raises:
            KeyboardInterrupt: The signal was SIGINT.
            PreemptedExit: It was SIGTERM or SIGUSR1.
        """
        self._signal, self.left = 0, True
        leave(number, message)

    def leave_after_end(self, message: str) -> None:
        """Leave if a signal came when the run was at its end already: whoever sent it wants the process to go."""
        if self._signal:
            self.leave(self._signal, message)
