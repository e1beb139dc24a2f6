"""A forked process as whoever asked for it sees it: what tests and torch's launcher use of `subprocess.Popen`."""

import json
import os
import select
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

LARGEST_NUMBER = 32
"""The most bytes of a number that a server sends."""


def ask(
    server: socket.socket,
    arguments: Sequence[str],
    descriptors: Sequence[int],
    *,
    folder: str,
    environment: Mapping[str, str],
    new_session: bool,
    launches: bool,
) -> int:
    """Have a server fork a process, and return its number.

    Args:
        server: The socket of the server.
        arguments: Those of `python`.
        descriptors: Standard input, output and error, and where the status goes.
        folder: Its working folder.
        environment: All of its environment.
        new_session: Whether it has a session of its own.
        launches: Whether it starts workers by torch's launcher, which are to be forked too.
    """
    request = {"arguments": list(arguments), "folder": folder, "environment": dict(environment)}
    message = json.dumps({**request, "new_session": new_session, "launches": launches}).encode()
    socket.send_fds(server, [message], descriptors)
    return int(server.recv(LARGEST_NUMBER))


class Process(ABC):
    """A process that was forked.

    Args:
        arguments: The arguments of `python`.
        pid: Its number.

    Attributes:
        returncode: Its exit status, negative for a signal; None as long as nobody saw it end.
    """

    def __init__(self, arguments: Sequence[str], pid: int) -> None:
        self.args, self.pid = arguments, pid
        self.returncode: int | None = None

    @abstractmethod
    def _status(self, timeout: float | None) -> int | None:
        """Wait for its end for so many seconds, or without an end; return the exit status, None if it runs on."""

    def poll(self) -> int | None:
        """Return the exit status; None while it runs."""
        if self.returncode is None:
            self.returncode = self._status(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return the exit status."""
        if self.returncode is None:
            self.returncode = self._status(timeout)
        if self.returncode is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(list(self.args), timeout)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)


class Reported(Process):
    """A process of which another one says how it ended.

    Args:
        arguments: The arguments of `python`.
        pid: Its number.
        status: The file that its status comes by.
    """

    def __init__(self, arguments: Sequence[str], pid: int, status: int) -> None:
        super().__init__(arguments, pid)
        self._descriptor = status

    def _status(self, timeout: float | None) -> int | None:
        ready, _, _ = select.select([self._descriptor], [], [], timeout)
        if not ready:
            return None
        told = os.read(self._descriptor, LARGEST_NUMBER)
        os.close(self._descriptor)
        return int(told)


class Child(Process):
    """A process whose parent is this one."""

    def _status(self, timeout: float | None) -> int | None:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            ended, status = os.waitpid(self.pid, 0 if deadline is None else os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            if deadline is not None and time.monotonic() >= deadline:
                return None
            time.sleep(0.005)
