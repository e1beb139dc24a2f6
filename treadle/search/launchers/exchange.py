"""The search's end of its workers' lines: threads that listen, and one queue that the search reads."""

import queue
import secrets
import socket
import threading
from dataclasses import dataclass
from typing import Any

from treadle.search.launchers.wire import Line, WireError

GONE = {"gone": True}
"""What the queue says when a line has broken."""


@dataclass(frozen=True)
class Said:
    """A message of a worker.

    Attributes:
        worker: The name that the search gave the worker.
        line: The line it came on; the answer goes there.
        message: The message.
    """

    worker: str
    line: Line
    message: dict[str, Any]


class Exchange:
    """Listens to workers of this machine that know a secret.

    Args:
        host: The address to listen at.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        self._server = socket.create_server((host, 0))
        self._secret = secrets.token_hex(16)
        self._said: queue.Queue[Said] = queue.Queue()
        self._lines: list[Line] = []
        threading.Thread(target=self._accept, name="treadle-search-exchange", daemon=True).start()

    def address(self, worker: str) -> str:
        """Return what a worker needs to know to find the search."""
        host, port = self._server.getsockname()[:2]
        return f"{host}:{port}:{self._secret}:{worker}"

    def next(self, seconds: float) -> Said | None:
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
            line = Line(connection)
            self._lines.append(line)
            threading.Thread(target=self._listen, args=(line,), name="treadle-search-line", daemon=True).start()

    def _listen(self, line: Line) -> None:
        worker = ""
        try:
            hello = line.receive()
            if not secrets.compare_digest(str(hello.get("secret")), self._secret):
                return
            worker = str(hello.get("worker"))
            while True:
                self._said.put(Said(worker, line, line.receive()))
        except (WireError, ValueError):
            if worker:
                self._said.put(Said(worker, line, GONE))
        finally:
            line.close()
