"""What a server asks of those who talk to it: a size, a time, and that they mean this server."""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from treadle.recsys.serve.server.statistics import Statistics

logger = logging.getLogger(__name__)
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]
LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
]
FAILED = "the server failed at this request; its log has the reason"
OTHER = "other"
"""Stands for paths that the server does not have: of these there are as many as somebody likes."""


class _TooLargeError(Exception):
    pass


class Limits:
    """Lets requests through that are small and soon complete, and answers for those that are not.

    Whatever fails behind it is logged, and told without a word of where in the program it was.

    Args:
        application: What answers.
        statistics: Where requests are counted.
        paths: The paths that there are.
        most_bytes: How large a body may be.
        patience: How many seconds it may take to come.
        hosts: By which names the server may be called; None for any.
    """

    def __init__(
        self,
        application: Application,
        statistics: Statistics,
        *,
        paths: frozenset[str],
        most_bytes: int,
        patience: float,
        hosts: frozenset[str] | None,
    ) -> None:
        self._application, self._statistics, self._paths = application, statistics, paths
        self._most_bytes, self._patience, self._hosts = most_bytes, patience, hosts

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        began, status = time.perf_counter(), 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *HEADERS]
            await send(message)

        try:
            await self._passed_on(scope, receive, sending)
        except Exception:
            logger.exception("a request of %s failed", scope["path"])
            if not status:
                await refuse(sending, 500, FAILED)
        path = scope["path"] if scope["path"] in self._paths else OTHER
        self._statistics.request(path, status, time.perf_counter() - began)

    async def _passed_on(self, scope: Message, receive: Receive, send: Send) -> None:
        headers = {name.lower(): value for name, value in scope["headers"]}
        host = headers.get(b"host", b"").decode("latin-1")
        if self._hosts is not None and _name_of(host) not in self._hosts:
            # A page of another site that has its name point here must not ask.
            await refuse(send, 403, "only for programs on this machine; call it by 127.0.0.1 or localhost")
            return
        said = headers.get(b"content-length", b"0")
        try:
            if not said.isdigit() or int(said) > self._most_bytes:
                raise _TooLargeError
            body = await asyncio.wait_for(self._body(receive), self._patience)
        except _TooLargeError:
            await refuse(send, 413, f"the body is too large; {self._most_bytes:,} bytes are taken at most")
            return
        except TimeoutError:
            await refuse(send, 408, f"the body did not come within {self._patience:g} seconds")
            return
        if body is not None:
            await self._application(scope, _replayed(body, receive), send)

    async def _body(self, receive: Receive) -> bytes | None:
        """Return the body of a request; None if whoever sent it has left."""
        parts, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._most_bytes:
                raise _TooLargeError
            if not message.get("more_body", False):
                return b"".join(parts)


def _name_of(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host).lower()


def _replayed(body: bytes, receive: Receive) -> Receive:
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


async def refuse(send: Send, status: int, error: str) -> None:
    """Answer a request with an error; the connection ends where a body may still be on its way."""
    content = json.dumps({"error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    if status in (408, 413):
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
