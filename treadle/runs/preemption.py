"""Leaving in good order: a signal is a request to save at the next step and go."""

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from treadle.parallel.processes import Processes

EXIT_CODE = 75
"""The exit status of a process that was asked to go and saved its run: start the same command again."""


def known_signals(*names: str) -> tuple[signal.Signals, ...]:
    """Return the signals of these names that this system has.

    >>> known_signals("SIGINT", "SIGNOTHING")
    (<Signals.SIGINT: 2>,)
    """
    return tuple(getattr(signal, name) for name in names if hasattr(signal, name))


SIGNALS = known_signals("SIGTERM", "SIGINT", "SIGUSR1", "SIGBREAK")
"""What asks a run to leave; SIGUSR1 is not there on Windows, and SIGBREAK, of Ctrl-Break, is there alone."""


class PreemptedExit(SystemExit):
    """Raised when a run was saved because SIGTERM or SIGUSR1 asked it to leave; the exit status is 75."""

    def __init__(self, message: str) -> None:
        super().__init__(EXIT_CODE)
        self.message = message

    def __str__(self) -> str:
        return self.message


def handled_signals(numbers: Iterable[signal.Signals]) -> list[signal.Signals]:
    """Return the signals that whoever started this process does not want it to ignore, as a shell does with SIGINT."""
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]


class SignalHandler:
    """While entered, SIGTERM, SIGINT and SIGUSR1 ask the run to leave; a second SIGINT interrupts at once.

    Handlers can only be set in the main thread; elsewhere nothing happens. A signal that was ignored stays so.

    Args:
        on_request: Called, from the signal handler, with the signal's number.
    """

    def __init__(self, on_request: Callable[[int], None]) -> None:
        self._on_request = on_request
        self._before: dict[signal.Signals, Any] = {}
        self._interrupted = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in handled_signals(SIGNALS)}
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._interrupted:
            raise KeyboardInterrupt
        self._interrupted = self._interrupted or number == signal.SIGINT
        self._on_request(number)

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            # None is a handler that was not set in Python, and cannot be set again.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


class EvaluationInterrupted(Exception):  # noqa: N818 - it is no error: the evaluation is made when the run continues
    """Raised inside an evaluation when the run was asked to leave."""


class InterruptibleEvaluation:
    """An evaluation in the middle of a run, which is broken off when the run is asked to leave.

    Several processes come to that at the same batch, so that none of them waits for another.

    Args:
        requested: Whether this process was asked.
        processes: The processes of the run.
        length: How many batches this process has; None if that is not known.
        every: After how many batches several processes ask each other.
    """

    def __init__(self, requested: Callable[[], bool], processes: "Processes", length: int | None, every: int) -> None:
        self._requested, self._processes, self._every = requested, processes, every
        self._batches = 0
        self._shared = int(processes.reduce([float(length or 0)], "min")[0]) if processes.distributed else 0

    def after_batch(self) -> None:
        """Look whether the run was asked to leave.

        Raises:
            EvaluationInterrupted: It was.
        """
        self._batches += 1
        if not self._processes.distributed:
            leaves = self._requested()
        elif self._batches % self._every or self._batches > self._shared:
            return
        else:
            leaves = bool(self._processes.reduce([float(self._requested())], "max")[0])
        if leaves:
            raise EvaluationInterrupted


_under_way: ContextVar[InterruptibleEvaluation | None] = ContextVar("evaluation", default=None)


@contextmanager
def interruptible(evaluation: InterruptibleEvaluation | None) -> Iterator[None]:
    """Let evaluations in the block, which know of no run, be broken off as `evaluation` is."""
    token = _under_way.set(evaluation)
    try:
        yield
    finally:
        _under_way.reset(token)


def after_evaluated_batch() -> None:
    """Look, in an evaluation that knows of no run, whether the run that it is a part of was asked to leave.

    Raises:
        EvaluationInterrupted: It was.
    """
    evaluation = _under_way.get()
    if evaluation is not None:
        evaluation.after_batch()


def leave(number: int, message: str) -> None:
    """End the run that was saved.

    Raises:
        KeyboardInterrupt: It was Ctrl-C, which a notebook survives.
        PreemptedExit: It was SIGTERM or SIGUSR1.
    """
    if number == signal.SIGINT:
        raise KeyboardInterrupt(message)
    raise PreemptedExit(message)
