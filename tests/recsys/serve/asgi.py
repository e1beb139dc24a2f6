"""Requests to an application without a socket."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

from treadle.recsys.serve.server.limits import Application, Message


class Reply(NamedTuple):
    """What an application answered."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """Asks an application, which is started and ended as a server does it."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._told: asyncio.Queue[Message] = asyncio.Queue()
        self._said: asyncio.Queue[Message] = asyncio.Queue()

    async def __aenter__(self) -> Self:
        self._life = asyncio.create_task(
            self._application({"type": "lifespan", "asgi": {"version": "3.0"}}, self._told.get, self._said.put)
        )
        await self._told.put({"type": "lifespan.startup"})
        assert (await self._said.get())["type"] == "lifespan.startup.complete"
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self._told.put({"type": "lifespan.shutdown"})
        assert (await self._said.get())["type"] == "lifespan.shutdown.complete"
        await self._life

    async def post(self, path: str, **given: Any) -> Reply:
        return await self.ask("POST", path, [json.dumps(given).encode()])

    async def ask(
        self,
        method: str,
        path: str,
        parts: Sequence[bytes | None] = (b"",),
        *,
        host: str = "127.0.0.1:80",
        length: int | None = None,
        kind: str = "application/json",
    ) -> Reply:
        """Return the reply to a request whose body comes in parts; None is one that never comes."""
        headers = {"host": host, "content-type": kind} | ({} if length is None else {"content-length": str(length)})
        left = list(parts)
        sent: list[Message] = []

        async def receive() -> Message:
            part = left.pop(0) if left else None
            if part is None:
                await asyncio.Event().wait()
            return {"type": "http.request", "body": part, "more_body": bool(left)}

        async def send(message: Message) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "server": ("127.0.0.1", 80),
            "client": ("127.0.0.1", 1),
        }
        await self._application(scope, receive, send)
        found = {name.decode().lower(): value.decode() for name, value in sent[0]["headers"]}
        return Reply(sent[0]["status"], found, b"".join(one.get("body", b"") for one in sent[1:]))
