"""Messages between the search and its workers: one JSON object a line, over a socket of this machine."""

import json
import queue
import secrets
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from treadle.errors import TreadleError

ADDRESS = "TREADLE_SEARCH"
"""The environment variable by which a worker finds the search: host, port, a secret, and the number of the worker."""

LIMIT = 1 << 28
"""Bytes that a message may have; a task is small, since data sets are described and not sent."""


class WireError(TreadleError):
    """The other end of the line is gone, or talks nonsense."""


class Connection:
    """One end of a connection.

    Args:
        connection: The socket.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self._file = connection.makefile("rb")

    def send(self, message: dict[str, Any]) -> None:
        """Send a message.

        Raises:
            WireError: Nobody is there any more.
        """
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise WireError(f"the other end has gone: {error}") from error

    def send_if_there(self, message: dict[str, Any]) -> None:
        """Send a message; where nobody is there any more, the thread that listens says so."""
        with suppress(WireError):
            self.send(message)

    def receive(self) -> dict[str, Any]:
        """Wait for a message.

        Raises:
            WireError: Nobody is there any more, or it is no message.
        """
        try:
            text = self._file.readline(LIMIT)
        except OSError as error:
            raise WireError(f"the other end has gone: {error}") from error
        if not text.endswith(b"\n"):
            raise WireError("the other end has gone")
        message = json.loads(text)
        if not isinstance(message, dict):
            raise WireError(f"a message is a JSON object, got {message!r}")
        return message

    def close(self) -> None:
        """End the connection."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        for end in (self._file, self._socket):
            with suppress(OSError):
                end.close()


def connect(address: str) -> Connection:
    """Return a line to the search at an address, having shown the secret in it.

    Raises:
        WireError: Nobody is there.
    """
    host, port, secret, worker = address.rsplit(":", 3)
    try:
        line = Connection(socket.create_connection((host, int(port)), timeout=30))
    except OSError as error:
        raise WireError(f"there is no search at {host}:{port}: {error}") from error
    line._socket.settimeout(None)
    line.send({"secret": secret, "worker": worker})
    return line


# The search's end of its workers' lines: threads that listen, and one queue that the search reads


GONE = {"gone": True}
"""What the queue says when a line has broken."""


@dataclass(frozen=True)
class WorkerMessage:
    """A message of a worker.

    Attributes:
        worker: The name that the search gave the worker.
        line: The line it came on; the answer goes there.
        message: The message.
    """

    worker: str
    line: Connection
    message: dict[str, Any]


class WorkerServer:
    """Listens to workers of this machine that know a secret.

    Args:
        host: The address to listen at.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        self._server = socket.create_server((host, 0))
        self._secret = secrets.token_hex(16)
        self._said: queue.Queue[WorkerMessage] = queue.Queue()
        self._lines: list[Connection] = []
        threading.Thread(target=self._accept, name="treadle-search-exchange", daemon=True).start()

    def address(self, worker: str) -> str:
        """Return what a worker needs to know to find the search."""
        host, port = self._server.getsockname()[:2]
        return f"{host}:{port}:{self._secret}:{worker}"

    def next(self, seconds: float) -> WorkerMessage | None:
        """Return the next message; None if none came in time."""
        try:
            return self._said.get(timeout=max(0.0, seconds))
        except queue.Empty:
            return None

    def close(self) -> None:
        """Hang up on everybody."""
        self._server.close()
        for line in self._lines:
            line.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            line = Connection(connection)
            self._lines.append(line)
            threading.Thread(target=self._listen, args=(line,), name="treadle-search-line", daemon=True).start()

    def _listen(self, line: Connection) -> None:
        worker = ""
        try:
            hello = line.receive()
            if not secrets.compare_digest(str(hello.get("secret")), self._secret):
                return
            worker = str(hello.get("worker"))
            while True:
                self._said.put(WorkerMessage(worker, line, line.receive()))
        except (WireError, ValueError):
            if worker:
                self._said.put(WorkerMessage(worker, line, GONE))
        finally:
            line.close()
