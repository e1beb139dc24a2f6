"""Leaving in good order: a signal is a request to save at the next step and go."""

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

EXIT_CODE = 75
"""The exit status of a process that was asked to go and saved its run: start the same command again."""

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class PreemptedExit(SystemExit):
    """Raised when a run was saved because SIGTERM or SIGUSR1 asked it to leave; the exit status is 75."""

    def __init__(self, message: str) -> None:
        super().__init__(EXIT_CODE)
        self.message = message

    def __str__(self) -> str:
        return self.message


class LeavingRequests:
    """While entered, SIGTERM, SIGINT and SIGUSR1 ask the run to leave; a second SIGINT interrupts at once.

    Handlers can only be set in the main thread; elsewhere nothing happens.

    Args:
        on_request: Called, from the signal handler, with the signal's number.
    """

    def __init__(self, on_request: Callable[[int], None]) -> None:
        self._on_request = on_request
        self._before: dict[signal.Signals, Any] = {}
        self._interrupted = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in SIGNALS}
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


def leave(number: int, message: str) -> None:
    """End the run that was saved.

    Raises:
        KeyboardInterrupt: It was Ctrl-C, which a notebook survives.
        PreemptedExit: It was SIGTERM or SIGUSR1.
    """
    if number == signal.SIGINT:
        raise KeyboardInterrupt(message)
    raise PreemptedExit(message)
