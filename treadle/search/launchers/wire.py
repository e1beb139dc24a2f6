"""Messages between the search and its workers: one JSON object a line, over a socket of this machine."""

import json
import socket
from contextlib import suppress
from typing import Any

from treadle.errors import TreadleError

ADDRESS = "TREADLE_SEARCH"
"""The environment variable by which a worker finds the search: host, port, a secret, and the number of the worker."""

LIMIT = 1 << 28
"""Bytes that a message may have; a task is small, since data sets are described and not sent."""


class WireError(TreadleError):
    """The other end of the line is gone, or talks nonsense."""


class Line:
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


def connect(address: str) -> Line:
    """Return a line to the search at an address, having shown the secret in it.

    Raises:
        WireError: Nobody is there.
    """
    host, port, secret, worker = address.rsplit(":", 3)
    try:
        line = Line(socket.create_connection((host, int(port)), timeout=30))
    except OSError as error:
        raise WireError(f"there is no search at {host}:{port}: {error}") from error
    line._socket.settimeout(None)
    line.send({"secret": secret, "worker": worker})
    return line
