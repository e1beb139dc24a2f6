"""The process of a server: its socket, its connections, and how it ends."""

import asyncio
import logging
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from treadle.errors import ConfigError, importing
from treadle.recsys.serve.saved import load_recommender
from treadle.recsys.serve.server.app import Options, make_app
from treadle.recsys.serve.server.limits import LOOPBACK
from treadle.recsys.serve.server.live_model import LiveModel, Load
from treadle.recsys.serve.server.statistics import Statistics

logger = logging.getLogger(__name__)
MOST_CONNECTIONS = 4096
"""How many connections there may be; who comes then is turned away."""
DRAIN = 30
"""How many seconds requests have to be answered, after the server was asked to end."""


def serve(
    place: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    options: Options | None = None,
    announce: Callable[[str], None],
    load: Load = load_recommender,
) -> None:
    """Serve a model until a signal: SIGTERM and Ctrl-C let requests that are under way be answered.

    Args:
        place: The file of a model, the folder of a run, or a folder with the runs of which the newest is served.
        host: Where to listen.
        port: Where to listen; 0 takes a free one.
        options: What the server takes.
        announce: Is told the address.
        load: Loads a recommender.

    Raises:
        CheckpointError: There is no model.
        ConfigError: The port is taken.
        MissingDependencyError: FastAPI or uvicorn is not installed.
    """
    with importing("fastapi and uvicorn", extra="serve", user="treadle recsys serve"):
        import fastapi  # noqa: F401
        import uvicorn
    chosen = options or Options(any_host=host not in LOOPBACK)
    statistics = Statistics()
    # The port first: a model may take minutes to be loaded.
    with _listening(host, port) as listener:
        model = LiveModel(place, load, _counting(statistics))
        _allow_many_files()
        config = uvicorn.Config(
            make_app(model, statistics, chosen),
            http=patient_protocol(chosen.patience),
            ws="none",
            lifespan="on",
            access_log=False,
            server_header=False,
            log_level="warning",
            timeout_keep_alive=max(1, int(chosen.patience)),
            timeout_graceful_shutdown=DRAIN,
            backlog=2048,
        )
        name = f"[{host}]" if ":" in host else host
        announce(f"http://{name}:{listener.getsockname()[1]}  (serving {model.source}; Ctrl-C ends it)")
        _run(uvicorn.Server(config), listener)
    announce(f"no longer serving {place}")


def _run(server: Any, listener: socket.socket) -> None:
    before = None
    if threading.current_thread() is threading.main_thread():
        # When all is answered uvicorn sends the signal again, to whoever was there before.
        before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        logger.debug("ended by Ctrl-C")
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


def _counting(statistics: Statistics) -> Callable[[bool], None]:
    def changed(well: bool) -> None:
        if well:
            statistics.loads += 1
        else:
            statistics.failed_loads += 1

    return changed


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise ConfigError(f"cannot listen at {host}:{port}: {error.strerror or error}; give another --port") from error


def _allow_many_files() -> None:
    """Let there be as many open connections as the system allows."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * MOST_CONNECTIONS if hard == resource.RLIM_INFINITY else min(2 * MOST_CONNECTIONS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def patient_protocol(patience: float) -> Any:
    """Return uvicorn's protocol with an end to its patience: for connections that ask nothing, and for too many.

    Args:
        patience: How many seconds a connection has to ask something.
    """
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class PatientProtocol(H11Protocol):
        _silence: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if len(self.connections) > MOST_CONNECTIONS:
                transport.close()
                return
            self._wait()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if not self._is_answering():
                self._wait()
            elif self._silence is not None:
                self._silence.cancel()
                self._silence = None

        def _is_answering(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete

        def _wait(self) -> None:
            # Not anew with each byte: whoever sends one a second would never be done.
            if self._silence is None:
                self._silence = self.loop.call_later(patience, self._end_silence)

        def _end_silence(self) -> None:
            self._silence = None
            if not self._is_answering():
                self.transport.close()

        def connection_lost(self, exc: Exception | None) -> None:
            if self._silence is not None:
                self._silence.cancel()
            super().connection_lost(exc)

    return PatientProtocol
