"""The application: what a server of recommendations can be asked."""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any

from treadle.errors import ConfigError, DataError, TreadleError, importing
from treadle.recsys.serve.queries import Query
from treadle.recsys.serve.server.batches import Batcher, OverloadedError, UnknownUserError
from treadle.recsys.serve.server.limits import FAILED, LOOPBACK, Application, Limits
from treadle.recsys.serve.server.live_model import LiveModel
from treadle.recsys.serve.server.pages import ASK, DOCS, POLICY
from treadle.recsys.serve.server.statistics import Statistics

PATHS = frozenset({"/", "/docs", "/openapi.json", "/recommend", "/similar", "/health", "/metrics"})


@dataclass(frozen=True)
class Options:
    """What a server takes.

    Attributes:
        most_items: The largest `k`.
        most_history: The longest history.
        most_bytes: The largest body.
        patience: How many seconds a request may take to come, and how many an answer to be there.
        refresh: How many seconds there are between two looks for a newer model.
        together: How many requests are answered at once.
        waiting: How many may wait.
        any_host: Whether it may be called by any name, not only by those of this machine.
    """

    most_items: int = 1000
    most_history: int = 10_000
    most_bytes: int = 1 << 20
    patience: float = 10.0
    refresh: float = 2.0
    together: int = 64
    waiting: int = 2048
    any_host: bool = False

    def __post_init__(self) -> None:
        for name in ("most_items", "most_history", "most_bytes", "patience", "refresh", "together", "waiting"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name}={getattr(self, name)!r} must be more than 0")


def make_app(model: LiveModel, statistics: Statistics, options: Options | None = None) -> Application:
    """Return the application, for any server that speaks ASGI.

    Args:
        model: What answers.
        statistics: Where it is counted.
        options: What it takes.

    Raises:
        MissingDependencyError: FastAPI is not installed.
    """
    chosen = options or Options()
    with importing("fastapi", extra="serve", user="treadle recsys serve"):
        import fastapi  # noqa: F401
    application = _Routes(model, statistics, chosen).application()
    return Limits(
        application,
        statistics,
        paths=PATHS,
        most_bytes=chosen.most_bytes,
        patience=chosen.patience,
        hosts=None if chosen.any_host else LOOPBACK,
    )


class _Routes:
    """The functions behind the paths."""

    def __init__(self, model: LiveModel, statistics: Statistics, options: Options) -> None:
        self._model, self._statistics, self._options = model, statistics, options
        self._batcher: Batcher | None = None

    @property
    def batcher(self) -> Batcher:
        """What answers; it is there while the application runs."""
        assert self._batcher is not None, "the application has not been started"
        return self._batcher

    @asynccontextmanager
    async def _running(self, _: Any) -> AsyncIterator[None]:
        options = self._options
        self._batcher = Batcher(
            lambda: self._model.current, self._statistics, together=options.together, waiting=options.waiting
        )
        self._batcher.start()
        looking = asyncio.get_running_loop().create_task(self._look())
        try:
            yield
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
            await self._batcher.stop()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(self._options.refresh)
            with contextlib.suppress(OSError):
                await asyncio.to_thread(self._model.look)

    def application(self) -> Any:
        """Return the application of FastAPI."""
        from fastapi import FastAPI
        from fastapi.exceptions import RequestValidationError
        from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
        from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr

        options = self._options
        token = Annotated[StrictStr | StrictInt, Field(description="as the data has it")]

        class Strict(BaseModel):
            model_config = ConfigDict(extra="forbid")

        class RecommendRequest(Strict):
            """A list that is asked for: of a user, or of whoever has a history."""

            user: token | None = Field(None, description="the user; none with a history of somebody who has no name")
            history: list[token] | None = Field(
                None, max_length=options.most_history, description="the items of the user, oldest first"
            )
            k: StrictInt = Field(10, ge=1, le=options.most_items, description="how many items")
            exclude: list[token] = Field([], max_length=options.most_history, description="items to leave out")
            filter: list[token] | dict[str, Any] | None = Field(
                None, description="items, or values of their fields, that the list is kept to"
            )
            exclude_seen: StrictBool | None = Field(None, description="leave out what the user has")
            explain: StrictInt = Field(0, ge=0, le=10, description="how many items of the history to name with each")
            unknown: StrictStr = Field("refuse", description="refuse or skip items of a history that nobody knows")
            popular: StrictBool = Field(False, description="what is popular for users that the model does not know")

        class ScoredItem(BaseModel):
            item: str
            score: float | None
            because: list[str] | None = None

        class RecommendResponse(BaseModel):
            """A list, best first."""

            items: list[ScoredItem]
            popular: bool = Field(description="the model knows nothing of the user: this is what is popular")

        class SimilarRequest(Strict):
            """The items most like one."""

            item: token
            k: StrictInt = Field(10, ge=1, le=options.most_items)

        class SimilarResponse(BaseModel):
            """The items, most alike first."""

            items: list[ScoredItem]

        class Problem(BaseModel):
            error: str

        problems: dict[int | str, dict[str, Any]] = {
            status: {"model": Problem, "description": about}
            for status, about in {
                400: "The request cannot be meant.",
                404: "A user or an item that the model does not know.",
                413: "The body is too large.",
                422: "A field is missing, or of another type.",
                503: "Too many requests wait; come again.",
            }.items()
        }
        app = FastAPI(
            title="Treadle recommendations", lifespan=self._running, docs_url=None, redoc_url=None, version="1"
        )

        @app.exception_handler(RequestValidationError)
        async def invalid(_: Any, error: RequestValidationError) -> JSONResponse:
            return JSONResponse({"error": _first_mistake(error.errors())}, 422)

        @app.exception_handler(TreadleError)
        async def refused(_: Any, error: TreadleError) -> JSONResponse:
            headers = {"Retry-After": "1"} if isinstance(error, OverloadedError) else None
            return JSONResponse({"error": str(error)}, _status_of(error), headers)

        @app.exception_handler(Exception)
        async def failed(_: Any, error: Exception) -> JSONResponse:
            return JSONResponse({"error": FAILED}, 500)

        @app.exception_handler(404)
        async def nowhere(_: Any, error: Any) -> JSONResponse:
            return JSONResponse({"error": f"there is no such page; there are {', '.join(sorted(PATHS))}"}, 404)

        @app.exception_handler(405)
        async def wrong_method(_: Any, error: Any) -> JSONResponse:
            return JSONResponse({"error": "ask /recommend and /similar by POST, all others by GET"}, 405)

        @app.post("/recommend", response_model=RecommendResponse, responses=problems)
        async def recommend(asked: RecommendRequest) -> Any:
            """The best items for a user, or for a history."""
            query = Query(
                asked.user,
                asked.history,
                tuple(asked.exclude),
                asked.filter,
                asked.exclude_seen,
                asked.explain,
                asked.unknown,
            )
            k = min(asked.k, len(self._model.current.items) - 1)
            items, popular = await self.batcher.ask(query, k, popular=asked.popular, patience=options.patience)
            return JSONResponse({"items": [_plain(one) for one in items], "popular": popular})

        @app.post("/similar", response_model=SimilarResponse, responses=problems)
        async def similar(asked: SimilarRequest) -> Any:
            """The items most like an item."""
            found = await self.batcher.call(
                lambda recommender: recommender.similar_items(
                    str(asked.item), min(asked.k, max(1, len(recommender.items) - 2))
                ),
                options.patience,
            )
            return JSONResponse({"items": [_plain({"item": row.item, "score": row.score}) for row in found]})

        @app.get("/health")
        async def health() -> Any:
            """Whether it answers, with which model, and what hinders a newer one."""
            model = self._model
            facts = {"status": "ok", "model": model.source.name, "loaded_at": model.loaded_at}
            current = {"users": len(model.current.users) - 1, "items": len(model.current.items) - 1}
            return JSONResponse({**facts, **current, "source_present": model.is_there, "problem": model.problem})

        @app.get("/metrics")
        async def metrics() -> PlainTextResponse:
            """What was counted, in the format of Prometheus."""
            text = self._statistics.text(loaded_at=self._model.loaded_at, fresh=self._model.is_there)
            return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")

        @app.get("/", include_in_schema=False)
        async def ask() -> HTMLResponse:
            return HTMLResponse(ASK, headers={"Content-Security-Policy": POLICY})

        @app.get("/docs", include_in_schema=False)
        async def docs() -> HTMLResponse:
            return HTMLResponse(DOCS, headers={"Content-Security-Policy": POLICY})

        return app


def _plain(item: dict[str, Any]) -> dict[str, Any]:
    """Return an item as JSON can hold it, which has no nan."""
    return item if math.isfinite(item["score"]) else {**item, "score": None}


def _status_of(error: TreadleError) -> int:
    if isinstance(error, OverloadedError):
        return 503
    return 404 if isinstance(error, (UnknownUserError, DataError)) else 400


def _first_mistake(errors: Any) -> str:
    """Return, in one line, what is wrong with a request first."""
    first = errors[0]
    if first["type"] == "json_invalid":
        return f"the body is no JSON: {first.get('ctx', {}).get('error', 'it ends too early')}"
    place = ".".join(str(one) for one in first["loc"] if one != "body") or "the body"
    if first["type"] == "extra_forbidden":
        return f"{place} is no field of this request; /docs has them"
    return f"{place}: {first['msg']}"
